"""Plans of cuFFT that CuPy keeps for calls to come, and what they work in."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, Final

import cupy
import numpy as np
from cupy.cuda import MemoryPointer

_OWN: Final = ("cupy.fft.", "cupy.cuda.cufft")
_NESTS: Final = (dict, list, tuple)


def plans() -> Iterator[Any]:
    """Yield the plans that this thread's cache keeps, and arrays of all that they use.

    A captured transform reads what its plan has made: that is to live as long.
    """
    seen: set[int] = set()
    left: list[Any] = [cupy.fft.config.get_plan_cache()]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        cls = type(each)
        if cls is MemoryPointer:
            yield cupy.ndarray((each.mem.size,), np.uint8, MemoryPointer(each.mem, 0))
        elif cls in _NESTS:
            left += gc.get_referents(each)
        elif cls.__module__.startswith(_OWN):
            left += gc.get_referents(each)
            yield each
