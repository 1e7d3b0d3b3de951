"""How objects of a framework are looked into: said by its integration, by class."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from sapwood.tree.guards.scope import Accessor, Openings, Reach
from sapwood.tree.guards.views import ATTRIBUTES, View

__all__ = [
    "Deciders",
    "Declared",
    "alike",
    "attributes",
    "behind",
    "calls_of",
    "declare_calls",
    "declare_front",
    "declare_opening",
    "declare_opening_of",
    "opening_of",
]

Deciders: TypeAlias = Callable[[Any], Iterable[View]]
"""Says which views decide, by their names or lengths, how a value is looked into."""


class Declared(NamedTuple):
    """How instances of a class are looked into; ``deciders``: see `declare_opening`."""

    opened: Callable[[Any, Reach], Openings]
    deciders: Deciders | None


def alike(_: object) -> tuple[View, ...]:
    """Say, as `Deciders`, that all instances are looked into in the same way."""
    return ()


def attributes(*names: str) -> Callable[[Any, Reach], Openings]:
    """Return how to look into instances at these attributes, and at no others."""
    accessor = Accessor(ATTRIBUTES, frozenset(names))
    return lambda _, __: iter([accessor])


_declared: dict[type, Declared] = {}
_declared_by_name: dict[tuple[str, str], Declared] = {}
_found: WeakKeyDictionary[type, Declared | None] = WeakKeyDictionary()


def declare_opening(
    cls: type,
    opened: Callable[[Any, Reach], Openings],
    deciders: Deciders | None = None,
) -> None:
    """Say how to look into the instances of a class, and of those derived from it.

    Where ``deciders`` says which views ``opened`` decides by, it need not be asked
    again while those have the same names, or lengths, and all that was read is the
    same. They are views of the kinds "names" and "length".
    """
    _declared[cls] = Declared(opened, deciders)
    _found.clear()


def declare_opening_of(
    module: str,
    name: str,
    opened: Callable[[Any, Reach], Openings],
    deciders: Deciders | None = None,
) -> None:
    """Say the same of a class that is not imported before somebody uses it."""
    _declared_by_name[module, name] = Declared(opened, deciders)
    _found.clear()


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


def opening_of(cls: type) -> Declared | None:
    """Return how to look into instances of a class, where an integration has said."""
    if not _declared and not _declared_by_name:
        return None
    if cls not in _found:
        _found[cls] = next(filter(None, map(_declaration, cls.__mro__)), None)
    return _found[cls]


def _declaration(cls: type) -> Declared | None:
    named = cls.__module__, cls.__qualname__
    return _declared.get(cls) or _declared_by_name.get(named)
