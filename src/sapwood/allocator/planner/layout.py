"""A plan that is changed buffer by buffer: what is in the way moves elsewhere."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from sapwood.allocator.planner.beside import Beside
from sapwood.allocator.planner.instance import Instance, Wholes
from sapwood.allocator.planner.places import Places

__all__ = ["Layout"]

_OUT = 1 << 62
"""Where buffers begin and end that lie nowhere at present: above anything."""

_CHECKED_EVERY = 64


class Layout:
    """Where the buffers of an exact instance begin; between two calls, a plan.

    ``moves`` counts how often one was placed. Each has a weight, by its area at first,
    that grows whenever it pushes others out: so the places of those that are hard to
    place are left to them.
    """

    def __init__(
        self, instance: Instance, begins: Wholes, random: np.random.Generator
    ) -> None:
        self._instance, self._random = instance, random
        self._beside = Beside.of(instance)
        self._begins, self._ends = begins.copy(), begins + instance.size
        self._sizes: list[int] = instance.size.tolist()
        self._spares: list[int] = instance.spare.tolist()
        self._gains = np.sqrt(
            instance.size.astype(np.float64) * (instance.upper - instance.lower)
        )
        self._weights = self._gains.copy()
        self._moved: dict[int, int] = {}
        self._homeless: list[tuple[int, int]] = []
        self.moves = 0

    @property
    def begins(self) -> Wholes:
        """Where each buffer begins, in grains; another array every time."""
        return self._begins.copy()

    def adopt(self, begins: Wholes) -> None:
        """Go on from another plan."""
        self._begins, self._ends = begins.copy(), begins + self._instance.size

    @property
    def height(self) -> int:
        """Where the topmost buffer ends, in bytes."""
        return self._instance.height(self._begins)

    def above(self, height: int) -> list[int]:
        """Return the buffers that end above a height in bytes, the topmost first."""
        ends = self._ends * self._instance.grain - self._instance.spare
        found = np.flatnonzero(ends > height)
        falling: list[int] = found[np.argsort(-ends[found], kind="stable")].tolist()
        return falling

    def lower(
        self, number: int, height: int, moves: int, late: Callable[[], bool]
    ) -> bool:
        """Move a buffer to end at ``height`` bytes or below, and others out of its way.

        These move to where there is room, or push out others in turn. None of them ends
        above that height. Returns False, with all where they were, where that takes
        more than some ``moves``, or once it is late.
        """
        self._moved.clear()
        self._homeless.clear()
        if self._ends[number] > self._top(number, height):
            self._take_out(number)
        for turn in range(moves):
            if not self._homeless or (turn % _CHECKED_EVERY == 0 and late()):
                break
            self._place(heapq.heappop(self._homeless)[1], height)
        if not self._homeless:
            return True
        self._restore()
        return False

    def _top(self, number: int, height: int) -> int:
        """Return up to where a buffer may reach, in grains, below a height in bytes."""
        return (height + self._spares[number]) // self._instance.grain

    def _place(self, number: int, height: int) -> None:
        """Place a buffer in the tightest gap, or where it is least in the way."""
        self.moves += 1
        size = self._sizes[number]
        top = self._top(number, height)
        others = self._beside[number]
        begins, ends = self._begins[others], self._ends[others]
        places = Places.among(begins, ends, size, top)
        begin = places.tightest(top)
        if begin is None:
            begin = places.cheapest(self._weights[others], self._random)
            self._weights[number] += self._gains[number]
            for other in others[(begins < begin + size) & (ends > begin)].tolist():
                self._take_out(other)
        self._begins[number], self._ends[number] = begin, begin + size

    def _take_out(self, number: int) -> None:
        """Leave a buffer without a place; the largest gets one first."""
        self._moved.setdefault(number, int(self._begins[number]))
        self._begins[number] = self._ends[number] = _OUT
        heapq.heappush(self._homeless, (-self._sizes[number], number))

    def _restore(self) -> None:
        for number, begin in self._moved.items():
            self._begins[number] = begin
            self._ends[number] = begin + self._sizes[number]
