"""What torch's allocator has in one pool, asked for without harm.

``torch.cuda.memory_snapshot(pool.id)`` gives up a reference to each part of the number
that it was told, and owns none of them (torch 2.11 to 2.13;
https://github.com/pytorch/pytorch/pull/196366). CPython shares the numbers up to 256,
so that this shows from there on: two owners free one number, and memory is corrupted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from sys import getrefcount
from typing import Any, Final

import torch

__all__ = ["snapshot_of"]

_SHARED: Final = 256
"""The largest number of which CPython has one object for all."""


def snapshot_of(
    pool: tuple[int, int],
    snapshot: Callable[..., list[Any]] = torch.cuda.memory_snapshot,
) -> list[Any]:
    """Return torch's segments of a pool, by its ``id``; ``snapshot`` is torch's way.

    Each part has a reference more during the call, which is torch's to give up. Where
    torch leaves it, it is taken back, but from numbers that all share: how many others
    have those meanwhile cannot be told, and one reference more does no harm.
    """
    parts = (*pool, False)
    before = [getrefcount(parts[at]) for at in range(len(parts))]
    for part in parts:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
    try:
        return snapshot(parts[:2], include_traces=False)
    finally:
        after = [getrefcount(parts[at]) for at in range(len(parts))]
        for part, old, new in zip(parts, before, after, strict=True):
            if part > _SHARED and new > old:
                ctypes.pythonapi.Py_DecRef(ctypes.py_object(part))
