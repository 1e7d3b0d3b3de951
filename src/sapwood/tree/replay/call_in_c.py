"""Calls that go from the interpreter straight to C, where nearly all of them end.

A frame of Python, its tuple and its dict take as long as half of what C then does. So
once any fast replay was put to C, the class of graphed functions is called in C, too:
there all that is no plain call of a function that has fast replays is given to Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from sapwood import _fast
from sapwood.tree.call.offsets import offset
from sapwood.tree.replay.fast_replays import FastReplays
from sapwood.tree.watch import session

__all__ = ["Front", "in_front"]

_CALL: Final = 16 * ctypes.sizeof(ctypes.c_void_p)
"""Where a type has what its objects are called by."""


class Front(NamedTuple):
    """A class whose objects are called, and what C has to know of it.

    ``plain`` is its ``__call__``, and ``missed`` what is called where no fast replay
    fits; ``more`` are classes that derive from it, and are called like it. Nothing is
    replayed while ``disabled`` is set. ``slots`` hold an object's fast replays, what
    gives its runtime, and which one they are on.
    """

    cls: type[Any]
    more: tuple[type[Any], ...]
    disabled: ContextVar[bool]
    plain: Callable[..., Any]
    missed: Callable[..., Any]
    slots: tuple[str, str, str]


def in_front(front: Front) -> bool:
    """Have the class called in C; return whether it is.

    Its ``__call__`` stays what it is: whoever traces a program, as compilers do, reads
    it, and whoever puts another in its place has that called. A second class of a
    process is called in Python, and so is one where there is no C.
    """
    found = _fast.library()
    if found is None or not _is_where(front.cls):
        return False
    cls: Any = front.cls
    slots = (
        *(offset(cls, name) for name in front.slots),
        offset(FastReplays, "players"),
    )
    if None in slots:
        return False
    make: Any = found.sapwood_calls
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.py_object, ctypes.py_object)
    variable: Any = session.current
    told = (variable.__self__, front.disabled, front.missed, *slots)
    return {make(each, told) for each in (cls, *front.more)} == {True}


def _is_where(cls: type[Any]) -> bool:
    """Return whether the slot of what is called is where C takes it to be."""

    def slot(cls: type[Any]) -> int | None:
        return ctypes.c_void_p.from_address(id(cls) + _CALL).value

    called = type("Called", (), {"__call__": cls.__call__})
    return slot(object) is None and slot(called) is not None
