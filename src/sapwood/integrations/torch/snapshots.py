"""What torch's allocator has in one pool, asked for without harm.

``torch.cuda.memory_snapshot(pool.id)`` gives up a reference to each part of the number
that it was told, and owns none of them (torch 2.11 to 2.13;
https://github.com/pytorch/pytorch/pull/196366). CPython shares the numbers up to 256,
so that this shows from there on: two owners free one number, and memory is corrupted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from sys import getrefcount
from typing import Final

__all__ = ["unharmed"]

_COUNTING: Final = ctypes.PYFUNCTYPE(None, ctypes.py_object)
_take: Final = _COUNTING(("Py_IncRef", ctypes.pythonapi))
_drop: Final = _COUNTING(("Py_DecRef", ctypes.pythonapi))

_SHARED: Final = 256
"""The largest number of which CPython has one object for all."""


@contextmanager
def unharmed(pool: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield a pool's ``id``, to be told to one snapshot of torch's.

    Each part has a reference more meanwhile, which is torch's to give up. Where torch
    leaves it, it is taken back, but from numbers that all share: how many others have
    come to have those cannot be told, and one reference more does no harm.
    """
    parts = (*pool, False)  # whether traces are included is told beside the number
    before = [getrefcount(parts[at]) for at in range(len(parts))]
    for part in parts:
        _take(part)
    try:
        yield pool
    finally:
        after = [getrefcount(parts[at]) for at in range(len(parts))]
        for part, old, new in zip(parts, before, after, strict=True):
            if part > _SHARED and new > old:
                _drop(part)
