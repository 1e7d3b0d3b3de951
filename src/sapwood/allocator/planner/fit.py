"""Placing buffers one after the other, each in a gap between those that lie already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from sapwood.allocator.planner.buffers import Buffer, check_alignment, check_buffers
from sapwood.allocator.planner.instance import Instance, Wholes

__all__ = ["Gap", "fit", "largest_first", "size_order"]

Gap = Literal["lowest", "tightest"]
"""Which of the gaps that suffice: the lowest one, or the one that leaves least over."""


def largest_first(buffers: Sequence[Buffer], alignment: int = 1) -> tuple[int, ...]:
    """Return an offset in bytes for each buffer, a multiple of ``alignment``.

    The largest is placed first, each in the tightest gap. There is no search and no
    clock: the same buffers get the same offsets. Raises `MisuseError` for impossible
    buffers, and alignments below 1.
    """
    check_buffers(buffers)
    check_alignment(alignment)
    instance = Instance.of(buffers, alignment)
    begins = fit(instance, size_order(instance))
    return instance.offsets(begins)


def size_order(instance: Instance) -> list[int]:
    """Return the buffers, the largest first."""
    sizes = instance.size.tolist()
    return sorted(range(len(sizes)), key=lambda n: (-sizes[n], n))


def fit(instance: Instance, order: Iterable[int], gap: Gap = "tightest") -> Wholes:
    """Return where each buffer begins, in grains, placed in ``order``."""
    placed = _Placed(instance, gap)
    for number in order:
        placed.add(number)
    return placed.begins


class _Placed:
    """The buffers that lie already, in the order of where they begin."""

    def __init__(self, instance: Instance, gap: Gap) -> None:
        count, kind = instance.count, instance.size.dtype
        self._instance, self._tightest = instance, gap == "tightest"
        self._lower = np.zeros(count, np.int32)
        self._upper = np.zeros(count, np.int32)
        self._begin: Wholes = np.zeros(count, kind)
        self._end: Wholes = np.zeros(count, kind)
        self._count = 0
        self.begins: Wholes = np.zeros(count, kind)

    def add(self, number: int) -> None:
        """Place a buffer."""
        lower, upper = self._instance.lower[number], self._instance.upper[number]
        size = self._instance.size[number]
        begin = self._find(lower, upper, size)
        count = self._count
        at = int(self._begin[:count].searchsorted(begin, "right"))
        for column, value in (
            (self._lower, lower),
            (self._upper, upper),
            (self._begin, begin),
            (self._end, begin + size),
        ):
            column[at + 1 : count + 1] = column[at:count]
            column[at] = value
        self._count = count + 1
        self.begins[number] = begin

    def _find(self, lower: int, upper: int, size: int) -> int:
        count = self._count
        beside = np.flatnonzero(
            (self._lower[:count] < upper) & (self._upper[:count] > lower)
        )
        if not len(beside):
            return 0
        begins, ends = self._begin[beside], np.maximum.accumulate(self._end[beside])
        gaps = begins.copy()
        gaps[1:] -= ends[:-1]
        fitting = np.flatnonzero(gaps >= size)
        if not len(fitting):
            return int(ends[-1])
        which = fitting[gaps[fitting].argmin()] if self._tightest else fitting[0]
        return int(ends[which - 1]) if which else 0
