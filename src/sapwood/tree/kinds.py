"""How the instances of one class are taken apart; those of dataclasses, named tuples.

What is kept for a class does not keep the class.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sapwood.errors import InternalError

__all__ = ["Container", "dataclass_parts", "named_tuple_parts"]


@dataclass(frozen=True, slots=True)
class Container:
    """How the instances of one class are taken apart and put together.

    ``flatten(value)`` gives the children and a hashable rest, ``unflatten(rest,
    children)`` a fresh value, ``labels(rest, count)`` what a path adds per child.
    """

    flatten: Callable[[Any], tuple[Sequence[Any], Any]]
    unflatten: Callable[[Any, list[Any]], Any]
    labels: Callable[[Any, int], Iterable[str]]


def named_tuple_parts(cls: Any) -> Container:
    """Return how named tuples of a class are taken apart."""
    kept = weakref.ref(cls)
    return Container(
        lambda value: (value, None),
        lambda _, children: _alive(kept)._make(children),
        lambda _, __: [f".{name}" for name in _alive(kept)._fields],
    )


def dataclass_parts(cls: type) -> Container:
    """Return how instances of a dataclass are taken apart, by their attributes."""
    kept = weakref.ref(cls)
    fields = tuple(each.name for each in dataclasses.fields(cls))

    def parts(value: Any) -> tuple[Sequence[Any], Hashable]:
        more = getattr(value, "__dict__", {})
        names = [name for name in fields if name in more or hasattr(value, name)]
        names += [name for name in more if name not in fields]
        return [getattr(value, name) for name in names], tuple(names)

    def filled(names: tuple[str, ...], children: list[Any]) -> Any:
        value: Any = object.__new__(_alive(kept))
        for name, child in zip(names, children, strict=True):
            # Frozen dataclasses forbid their own setattr.
            object.__setattr__(value, name, child)
        return value

    return Container(parts, filled, lambda names, _: [f".{name}" for name in names])


def _alive(kept: weakref.ref[Any]) -> Any:
    cls = kept()
    if cls is None:
        raise InternalError("what is put together has a class")
    return cls
