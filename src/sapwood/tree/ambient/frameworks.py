"""How objects of a framework are looked into: said by its integration, by class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from sapwood.tree.ambient.scope import Openings, Reach

__all__ = ["declare_opening", "opening_of"]

_declared: dict[type, Callable[[Any, Reach], Openings]] = {}
_found: WeakKeyDictionary[type, Callable[[Any, Reach], Openings] | None] = (
    WeakKeyDictionary()
)


def declare_opening(cls: type, opened: Callable[[Any, Reach], Openings]) -> None:
    """Say how to look into the instances of a class, and of those derived from it."""
    _declared[cls] = opened
    _found.clear()


def opening_of(cls: type) -> Callable[[Any, Reach], Openings] | None:
    """Return how to look into instances of a class, where an integration has said."""
    if not _declared:
        return None
    if cls not in _found:
        bases = (_declared[base] for base in cls.__mro__ if base in _declared)
        _found[cls] = next(bases, None)
    return _found[cls]
