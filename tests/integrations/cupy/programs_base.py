"""What a program is, where it is written down, and what its values are drawn by.

A program is a function ``make(xp, rng)``; ``xp`` is CuPy, or NumPy. It returns the
function to be graphed, and ``arguments``, which gives the arguments of call ``i``: a
tuple, or a dict of keyword arguments. A third thing, if any, is a nest of arrays that
the calls write although no argument leads to them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

PROGRAMS: dict[str, Program] = {}


@dataclass(frozen=True)
class Program:
    """A program, and what is expected of it.

    It is recorded, unless ``skips``, a regular expression, says why not; ``either``:
    it may be recorded all the same, and where what it reads ``decides``, that hangs on
    the values. ``gpu_only``: NumPy cannot run it.
    """

    make: Callable[[Any, np.random.Generator], tuple[Any, ...]]
    skips: str | None = None
    either: bool = False
    decides: bool = False
    gpu_only: bool = False


def program(**expected):
    """Return a decorator that adds a program by its function's name."""

    def add(make):
        assert make.__name__ not in PROGRAMS, f"there are two of {make.__name__}"
        PROGRAMS[make.__name__] = Program(make, **expected)
        return make

    return add


def normal(xp, rng, *shape, dtype=np.float32):
    """Return an array of normal values; complex ones have two each."""
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return xp.asarray(np.asarray(values).astype(dtype))


def uniform(xp, rng, *shape, dtype=np.float32):
    """Return an array of values in [0, 1)."""
    return xp.asarray(rng.random(shape).astype(dtype))


def whole(xp, rng, low, high, shape, dtype=np.int32):
    """Return an array of whole numbers in [low, high)."""
    return xp.asarray(rng.integers(low, high, shape).astype(dtype))


def always(*args):
    """Return arguments that are the same arrays in every call."""
    return lambda _: args


def windows(buffer, size):
    """Return arguments that are one view of a buffer after another."""
    return lambda i: (buffer[i * size : (i + 1) * size],)
