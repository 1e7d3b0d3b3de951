"""Plans of cuFFT that CuPy keeps for calls to come, and what they work in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np
from cupy.cuda import MemoryPointer


def plans() -> Iterator[Any]:
    """Yield the plans that this thread's cache keeps, and arrays of all that they use.

    A captured transform reads what its plan has made: that is to live as long.
    """
    for _, node in cupy.fft.config.get_plan_cache():
        plan = node.plan
        yield plan
        areas = plan.work_area
        for area in areas if isinstance(areas, list) else (areas,):
            if area is not None:
                memory = area.mem
                yield cupy.ndarray((memory.size,), np.uint8, MemoryPointer(memory, 0))
