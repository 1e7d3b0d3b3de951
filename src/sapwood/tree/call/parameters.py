"""A function's parameters: which arguments belong to which, and what to call them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property
from typing import Any, Final

from sapwood.errors import MisuseError
from sapwood.tree.call.integration import Integration
from sapwood.tree.call.signature import Call, describe
from sapwood.tree.nests.containers import Structure, paths

_NOTHING: Final[Any] = tuple
_MANAGERS: Final = frozenset(
    {contextmanager(_NOTHING).__code__, asynccontextmanager(_NOTHING).__code__}
)
"""What runs where a function that these made is called: nothing of its own body."""


def check_kind(fn: Callable[..., Any], verb: str = "Graph") -> None:
    """Raise `MisuseError` for a kind of function that cannot be graphed.

    ``verb`` is what the remedies say to do with another one.
    """
    if isinstance(fn, staticmethod | classmethod | property | cached_property):
        kind = type(fn).__name__
        inner = getattr(fn, "fget", None) or getattr(fn, "func", fn)
        raise MisuseError(
            f"{getattr(inner, '__qualname__', fn)} is a {kind}, which binds in a way "
            f"of its own. Put @{kind} above, not below"
        )
    if getattr(fn, "__code__", None) in _MANAGERS:
        raise MisuseError(
            f"{fn.__qualname__} is made by @contextmanager, and its body does not run "
            f"when it is called. {verb} plain functions that are called in its block"
        )
    for kind, is_kind in (
        ("an asynchronous generator", inspect.isasyncgenfunction),
        ("a coroutine function", inspect.iscoroutinefunction),
        ("a generator function", inspect.isgeneratorfunction),
    ):
        # What an object runs when it is called; of a module that is its `forward`.
        runs = vars(type(fn)).get("__call__"), getattr(type(fn), "forward", None)
        if is_kind(fn) or any(map(is_kind, runs)):
            raise MisuseError(
                f"{getattr(fn, '__qualname__', fn)} is {kind}, whose body does not "
                f"run when it is called. {verb} a plain function that it calls"
            )
    if not callable(fn):
        raise MisuseError(f"{fn!r} is not callable. {verb} a function or a method")


class Parameters:
    """The parameters of one function, which messages call ``name``."""

    def __init__(self, fn: Callable[..., Any], name: str = "") -> None:
        self._function = name or str(getattr(fn, "__qualname__", type(fn).__qualname__))
        try:
            self._signature: inspect.Signature | None = inspect.signature(fn)
        except (TypeError, ValueError):
            self._signature = None
        known = () if self._signature is None else self._signature.parameters.values()
        self._known: tuple[inspect.Parameter, ...] = tuple(known)
        kinds = {each.kind: each.name for each in known}
        self._rest = kinds.get(inspect.Parameter.VAR_POSITIONAL, "")
        self._more = kinds.get(inspect.Parameter.VAR_KEYWORD, "")

    def bind(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Mapping[str, object]:
        """Return the arguments by parameter; raises `TypeError` as the call would.

        Those of ``*args`` and ``**kwargs`` come one by one: what they are gathered in
        is made anew by every call, and nobody's.
        """
        if self._signature is None:
            return {f"args[{i}]": value for i, value in enumerate(args)} | dict(kwargs)
        try:
            found = dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"{self._function}: {error}") from None
        rest, more = found.pop(self._rest, ()), found.pop(self._more, {})
        found |= {f"{self._rest}[{i}]": value for i, value in enumerate(rest)}
        for name, value in more.items():
            # What may only be passed by its place can have the name of a keyword.
            found[name if name not in found else f"{self._more}[{name!r}]"] = value
        return found

    def fits(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether Python takes such arguments for the function."""
        try:
            self.bind(args, kwargs)
        except TypeError:
            return False
        return True

    def describe(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], integration: Integration
    ) -> Call:
        """Flatten a call's arguments; of one that is refused, say which it is.

        Raises what `signature.describe` raises.
        """
        return describe(args, kwargs, integration, self._refusal)

    def _refusal(self, structure: Structure, leaf: int) -> str:
        return f"{self._function} cannot take {self.leaf_names(structure)[leaf]}"

    def check(self, option: str, names: Sequence[str]) -> None:
        """Raise `MisuseError` for a name that is no parameter."""
        known = [each.name for each in self._known]
        for name in names:
            if name not in known:
                raise MisuseError(
                    f"{option}={name!r} names no parameter. The parameters are "
                    f"{', '.join(known) or 'none'}"
                )

    def names(self, call: Call) -> list[str]:
        """Return what a user would call each array argument: ``params['w']``."""
        leaves = self.leaf_names(call.structure)
        return [leaves[position] for position in call.positions]

    def leaf_names(self, structure: Structure) -> list[str]:
        """Return what a user would call each argument, what is in a container alone."""
        nest: Any = structure
        (_, _, passed), (_, keywords, named) = nest[2]
        roots = [*map(self._positional, range(len(passed))), *keywords]
        pairs = zip(roots, (*passed, *named), strict=True)
        return [name for root, child in pairs for name in paths(child, root)]

    def _positional(self, position: int) -> str:
        for i, parameter in enumerate(self._known):
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                return f"{parameter.name}[{position - i}]"
            if i == position:
                return parameter.name
        return f"args[{position}]"

    def declared(self, call: Call, option: Sequence[str]) -> frozenset[int]:
        """Return the places that hold arguments for the parameters in ``option``."""
        if not option:
            return frozenset()
        roots = (re.split(r"[.\[]", name, maxsplit=1)[0] for name in self.names(call))
        return call.given.holding({i for i, root in enumerate(roots) if root in option})
