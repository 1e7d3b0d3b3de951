"""How far an iterator that lives outside the function has come.

Reading one moves it, which no replay would repeat; so its place is never guarded,
but a move is noticed. Where the place cannot be read, moving is refused beforehand.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Hashable, Iterator, Sequence
from operator import length_hint
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from sapwood.tree.guards.views import View, value_text

_FRAMES: Final = {GeneratorType: "gi", CoroutineType: "cr", AsyncGeneratorType: "ag"}
_INDEXED: Final = {reversed, type(iter(type("", (), {"__getitem__": id})()))}
"""Iterators over sequences of any class, whose own length nobody may ask for."""

_DEPTH: Final = 20


def is_iterator(value: object) -> bool:
    """Return whether a value is an iterator that is not written in Python.

    Files are none: what a function writes there repeats as little as what it prints.
    """
    cls = type(value)
    if cls in _FRAMES:
        return True
    native = cls.__module__ in {"builtins", "itertools", "collections", "_collections"}
    return native and hasattr(cls, "__next__")


def is_readable(value: object) -> bool:
    """Return whether every move of an iterator shows in `PROGRESS`."""
    cls = type(value)
    if cls in _FRAMES or cls is itertools.cycle:
        return False
    return bool(_own_place(value)) or any(map(is_readable, _inner(value)))


def _own_place(value: Any) -> tuple[Hashable, ...]:
    cls = type(value)
    if cls is itertools.count:
        return (repr(value),)
    if cls in _INDEXED:
        return ("at", *value.__reduce__()[2:])
    if cls in _FRAMES:
        return _frame_place(value, _FRAMES[cls])
    if hasattr(cls, "__length_hint__"):
        # An endless repeat has none.
        return (length_hint(value, -1),)
    return ()


def _frame_place(value: Any, prefix: str) -> tuple[Hashable, ...]:
    frame = getattr(value, f"{prefix}_frame")
    if frame is None:
        return ("ended",)
    local = frame.f_locals.values()
    return (frame.f_lasti, *((id(each), value_text(each)) for each in local))


def _inner(value: Any) -> Iterator[Any]:
    """Yield the iterators that one of C draws from."""
    for each in gc.get_referents(value):
        for one in each if type(each) is tuple else (each,):
            if is_iterator(one):
                yield one


def _place(value: Any, depth: int) -> tuple[Hashable, ...]:
    if depth == _DEPTH:
        return ()
    return (*_own_place(value), *(_place(inner, depth + 1) for inner in _inner(value)))


def _places(value: Any) -> Sequence[Hashable]:
    # Bytes are compared by value, a tuple would be a thing of its own.
    return (repr(_place(value, 0)).encode(),)


PROGRESS = View(
    "progress", _places, lambda path, _, __: f"the place of {path}", guarded=False
)
