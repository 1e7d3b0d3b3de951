"""How objects of a framework are looked into: said by its integration, by class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from sapwood.tree.guards.scope import Accessor, Openings, Reach
from sapwood.tree.guards.views import ATTRIBUTES, View, Way, dotted

Opened: TypeAlias = Callable[[Any, Reach], Openings]
"""Says how a value is looked into by the code that was reached."""

_declared: dict[type | tuple[str, str], Opened] = {}
_found: WeakKeyDictionary[type, Opened | None] = WeakKeyDictionary()


def declare_opening(cls: type | tuple[str, str], opened: Opened) -> None:
    """Say how to look into the instances of a class, and of those derived from it.

    By its module and name, if it is not imported before somebody uses it.
    """
    _declared[cls] = opened
    _found.clear()


def attributes(*names: str) -> Opened:
    """Return how to look at these attributes alone, whatever code names."""
    view = Accessor(ATTRIBUTES, frozenset(names))
    return lambda _, __: iter([view])


_called: dict[type, frozenset[str]] = {}


def declare_calls(base: type, names: frozenset[str]) -> None:
    """Say which members of classes derived from one the framework calls by itself.

    No code of the user's names them; what they read is read by whoever has the class.
    """
    _called[base] = names


def calls_of(cls: type) -> frozenset[str]:
    """Return the members of a class that a framework calls."""
    if not _called:
        return frozenset()
    return frozenset().union(*(_called.get(base, ()) for base in cls.__mro__))


_fronts: set[str] = set()


def declare_front(mark: str) -> None:
    """Say by which attribute a function names another that it only stands before."""
    _fronts.add(mark)


def behind(fn: Any) -> Any:
    """Return the function that a framework's function stands before, or itself."""
    while isinstance(fn, FunctionType):
        marks = _fronts.intersection(vars(fn))
        if not marks:
            break
        fn = vars(fn)[marks.pop()]
    return fn


def opening_of(cls: type) -> Opened | None:
    """Return how to look into instances of a class, where an integration has said."""
    if not _declared:
        return None
    if cls not in _found:
        _found[cls] = next(filter(None, map(_declaration, cls.__mro__)), None)
    return _found[cls]


def _declaration(cls: type) -> Opened | None:
    named = cls.__module__, cls.__qualname__
    return _declared.get(cls) or _declared.get(named)


class Modes:
    """The values of all modes: a getter gives each, by what one would write."""

    def __init__(
        self, framework: str, getters: Mapping[str, Callable[[], Any]]
    ) -> None:
        self._getters = getters
        self.view = View(
            f"{framework} modes",
            Modes.now,
            dotted,
            portable=False,
            way=Way(getters=getters),
        )

    def now(self) -> dict[str, Any]:
        """Return the modes that this thread is in, by what one would write."""
        return {key: get() for key, get in self._getters.items()}

    def open(self, _: Reach) -> Openings:
        """Yield the one view of them."""
        yield Accessor(self.view, frozenset(self._getters))


declare_opening(Modes, Modes.open)
