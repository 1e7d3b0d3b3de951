"""Packing from the bottom up: whatever can lie lowest comes next."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sapwood.allocator.planner.instance import Instance, Wholes

__all__ = ["stack"]

_FEW = 64
"""With fewer buffers than this, there is no use in leaving out those that lie."""

_CHECKED_EVERY = 64


def stack(
    instance: Instance,
    ranking: npt.NDArray[np.intp],
    late: Callable[[], bool],
) -> Wholes | None:
    """Return where each buffer begins, in grains; None once it is late.

    A buffer lies on the highest of those below it. Of several that can begin equally
    low, the first in ``ranking`` is next.
    """
    begins = np.zeros(instance.count, instance.size.dtype)
    pile = _Pile(instance, ranking)
    for turn in range(instance.count):
        if turn % _CHECKED_EVERY == 0 and late():
            return None
        number, begin = pile.place_next()
        begins[number] = begin
    return begins


class _Pile:
    """The buffers that are left, in their ranking, and where they could begin."""

    def __init__(self, instance: Instance, ranking: npt.NDArray[np.intp]) -> None:
        self._numbers = ranking
        self._lower = instance.lower[ranking]
        self._upper = instance.upper[ranking]
        self._size = instance.size[ranking]
        self._begin = np.zeros(len(ranking), instance.size.dtype)
        self._high = int(instance.size.sum()) + 1
        self._left = len(ranking)

    def place_next(self) -> tuple[int, int]:
        """Place the buffer that can begin lowest; return its number, and where."""
        if self._left < len(self._numbers) // 2 and self._left > _FEW:
            self._forget_placed()
        at = int(self._begin.argmin())
        begin = self._begin[at]
        end = begin + self._size[at]
        self._begin[at] = self._high
        raised = (
            (self._lower < self._upper[at])
            & (self._upper > self._lower[at])
            & (self._begin < end)
        )
        self._begin[raised] = end
        self._left -= 1
        return int(self._numbers[at]), begin

    def _forget_placed(self) -> None:
        left = self._begin < self._high
        self._numbers, self._size = self._numbers[left], self._size[left]
        self._lower, self._upper = self._lower[left], self._upper[left]
        self._begin = self._begin[left]
