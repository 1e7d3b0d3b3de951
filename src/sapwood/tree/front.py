"""Calls that go from the interpreter straight to C, where nearly all of them end.

A frame of Python, its tuple and its dict take as long as half of what C then does. So
once any encore was put to C, the class of graphed functions is called in C, too: there
all that is no plain call of a function that has encores is given to Python's own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

from sapwood.tree import session
from sapwood.tree.again import library
from sapwood.tree.encores import Encores
from sapwood.tree.inside import offset

__all__ = ["Front", "in_front"]


class Front(NamedTuple):
    """A class whose objects are called, and what C has to know of it.

    ``plain`` is its ``__call__`` as it was, and ``missed`` what is called where no
    encore fits. Nothing is replayed while ``disabled`` is set. ``slots`` hold an
    object's encores, what gives its runtime, and which one they are on.
    """

    cls: type[Any]
    disabled: ContextVar[bool]
    plain: Callable[..., Any]
    missed: Callable[..., Any]
    slots: tuple[str, str, str]


def in_front(front: Front) -> Callable[..., Any] | None:
    """Return what the class may be called by; None where there is no C.

    Neither is there for a second class of a process.
    """
    found = library()
    if found is None:
        return None
    cls: Any = front.cls
    slots = (*(offset(cls, name) for name in front.slots), offset(Encores, "agains"))
    if None in slots:
        return None
    make: Any = found.sapwood_calls
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.py_object, ctypes.py_object)
    variable: Any = session.current
    told = (variable.__self__, front.disabled, front.plain, front.missed, *slots)
    return make(cls, told)  # type: ignore[no-any-return]
