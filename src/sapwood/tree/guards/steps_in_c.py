"""Steps as a built-in function, in C: half of Python's time.

Where that cannot be, nothing is said: the same steps run in Python.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from operator import is_
from typing import Any, Final

from sapwood import _fast
from sapwood.tree.guards.steps import Op, Program, Step

__all__ = ["in_c", "maker", "same"]

Maker = Callable[..., Callable[[], list[Any] | None]]


def in_c(program: Program) -> Callable[[], list[Any] | None] | None:
    """Return the steps as a function; None where there is no C.

    It gives what the used arrays' slots hold, or None: it cannot be told so.
    """
    make = maker()
    if make is None:
        return None
    steps, found = tuple(program.steps), tuple(program.found)
    return make(steps, found, program.latest, program.registers)


@functools.cache
def maker() -> Maker | None:
    """Return what makes functions of steps, or None where there is no C."""
    library = _fast.library()
    if library is None:
        return None
    make: Any = library.sapwood_steps
    make.restype = ctypes.py_object
    make.argtypes = (*[ctypes.py_object] * 3, ctypes.c_ssize_t)
    if not all(_is_told(make, write) for write in _WRITES):
        library.sapwood_watch_nothing()
    return make  # type: ignore[no-any-return]


@functools.cache
def same() -> Callable[[list[Any], list[Any]], object]:
    """Return what says whether two lists hold the very same objects."""
    library = _fast.library()
    if library is None:
        return _are_same
    compare: Any = library.sapwood_same
    compare.argtypes = (ctypes.py_object, ctypes.py_object)
    return compare  # type: ignore[no-any-return]


def _are_same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


class _Probe:
    """Something with an attribute."""

    def __init__(self) -> None:
        self.read: object = None


def _set(probe: _Probe) -> None:
    for value in [0] * 100:  # as often as it takes to be done the quick way
        probe.read = value


_WRITES: Final = (
    _set,
    lambda probe: object.__setattr__(probe, "read", 0),
    lambda probe: delattr(probe, "read"),
    lambda probe: probe.__dict__.update(read=0),
)


def _is_told(make: Maker, write: Callable[[_Probe], object]) -> bool:
    """Return whether a look notices that an attribute was written.

    CPython 3.13 does not tell those who watch the dict of an object of its attributes.
    """
    probe = _Probe()
    steps = (
        Step(Op.ROOT, 0, 0, lambda: probe),
        Step(Op.ATTRIBUTE, 1, 0, "__dict__"),
        Step(Op.ITEM, 2, 1, "read"),
        Step(Op.IS, 2, 0, None),
    )
    look = make(steps, (), [], 3)
    seen = [look() is not None for _ in range(3)]
    write(probe)
    return all(seen) and look() is None
