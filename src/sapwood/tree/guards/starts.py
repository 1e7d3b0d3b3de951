"""Where a walk starts: the function, the arguments, and what every function reads."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from sapwood.tree.guards.arrays import Arrays
from sapwood.tree.guards.frameworks import behind
from sapwood.tree.guards.scope import ATOMS, Reach
from sapwood.tree.nests.containers import container_of

__all__ = ["Start", "starts"]


class Start(NamedTuple):
    """Where a walk starts; ``parameter``: it is an argument, and of which."""

    path: str
    value: Any
    parameter: str | None = None


def starts(
    fn: Callable[..., Any],
    arguments: Mapping[str, object],
    arrays: Arrays,
    known: Reach,
) -> tuple[list[Start], Mapping[str, Any] | None]:
    """Return where a walk starts, containers last, and the function's globals."""
    found = [Start(path, value) for path, value in _roots(fn, known)]
    home = getattr(found[-1].value, "__globals__", None)
    given: tuple[list[Start], list[Start]] = [], []
    for name, value in arguments.items():
        if type(value) not in ATOMS and not arrays.is_array(value):
            is_container = container_of(type(value)) is not None
            given[is_container].append(Start(name, value, name))
    others, containers = given
    found += [*others, Start("builtins", builtins)]
    found += (Start(path, value) for path, value in arrays.surroundings())
    return [*found, *containers], home


def _roots(fn: Any, known: Reach) -> Iterator[tuple[str, Any]]:
    """Yield where the walk starts: the object that ``fn`` is bound to, and its code."""
    fn = behind(fn)
    while isinstance(fn, MethodType):
        yield "self", fn.__self__
        fn = behind(fn.__func__)
    call = next(
        (vars(cls)["__call__"] for cls in type(fn).__mro__ if "__call__" in vars(cls)),
        None,
    )
    if isinstance(call, FunctionType):
        yield "self", fn
        known.own.add(call.__code__)
        yield call.__qualname__, call
        return
    inner = fn
    while inner is not None:
        if isinstance(inner, FunctionType):
            known.own.add(inner.__code__)
        inner = getattr(inner, "__wrapped__", None) or (
            inner.func if isinstance(inner, partial) else None
        )
    yield getattr(fn, "__name__", type(fn).__name__), fn
