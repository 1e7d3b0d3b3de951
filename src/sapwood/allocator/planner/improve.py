"""Making the plan of one instance better, by whatever has worked least so far."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sapwood.allocator.planner.effort import Effort
from sapwood.allocator.planner.instance import Beside, Instance, Wholes
from sapwood.allocator.planner.search import FEW, Search


class Places:
    """The places next to an end of another buffer, and the lowest and the highest.

    They are those of a buffer of ``size`` that ends at ``top`` or below, among others
    with these ``begins`` and ``ends``, which are kept in rising order. At ``places[k]``
    a buffer lies above the first ``below[k]`` of ``ends``, and below the others than
    the first ``under[k]`` of ``begins``.
    """

    def __init__(self, begins: Wholes, ends: Wholes, size: int, top: int) -> None:
        self.by_begin, self.by_end = begins.argsort(), ends.argsort()
        self.begins = begins = begins[self.by_begin]
        self.ends = ends = ends[self.by_end]
        highest = top - size
        first, last = begins.searchsorted(size), begins.searchsorted(top, "right")
        floors = ends[: ends.searchsorted(highest, "right")]
        self.places = np.concatenate(([0, highest], floors, begins[first:last] - size))
        self.below = ends.searchsorted(self.places, "right")
        self.under = begins.searchsorted(self.places + size)

    def tightest(self, top: int) -> int | None:
        """Return the free place in the smallest gap below ``top``; None without one."""
        free = np.flatnonzero(self.below == self.under)
        if not len(free):
            return None
        floors = np.concatenate(([0], self.ends))[self.below[free]]
        roofs = np.concatenate((self.begins, [top]))[self.under[free]]
        gaps = np.minimum(roofs, top) - floors
        return int(self.places[free[gaps.argmin()]])

    def cheapest(
        self, weights: npt.NDArray[np.float64], random: np.random.Generator
    ) -> int:
        """Return the place where the others that are in the way weigh least.

        ``random`` makes each place up to twice as dear as that.
        """
        before = np.concatenate(([0.0], weights[self.by_begin].cumsum()))
        over = np.concatenate(([0.0], weights[self.by_end].cumsum()))
        cost = before[self.under] - over[self.below]
        cost *= 1 + random.random(len(cost))
        return int(self.places[cost.argmin()])


_OUT = 1 << 62
"""Where buffers begin and end that lie nowhere at present: above anything."""

_CHECKED_EVERY = 64

_PACE = 0.3
_PACES = 0.02, 0.5
"""How far down to aim, as parts of the way to the goal: at first; least and most."""

_MOVES = 300, 20_000
"""How many moves one buffer may cause: at first, which is also the least; and most."""

_MOVES_EACH = 20
"""How many moves it may cause at most for each buffer there is."""


class Mend:
    """Makes plans of an exact instance with buffers lower; it learns what is hard.

    Each buffer has a weight, by its area at first, that grows whenever it pushes others
    out: so the places of those that are hard to place are left to them. ``work`` counts
    how often one was placed. Between two calls, ``begins`` is a plan.
    """

    def __init__(self, instance: Instance, begins: Wholes, seed: int) -> None:
        self._instance, self._random = instance, np.random.default_rng(seed)
        self._beside = Beside(instance)
        self.begins, self._ends = begins.copy(), begins + instance.size
        spans = instance.upper - instance.lower
        self._gains = np.sqrt(instance.size.astype(np.float64) * spans)
        self._weights = self._gains.copy()
        self._moved: dict[int, int] = {}
        self._homeless: list[tuple[int, int]] = []
        self._pace, self._moves = _PACE, _MOVES[0]
        self._most = max(_MOVES[0], min(_MOVES_EACH * instance.count, _MOVES[1]))
        self.work = 0.0

    def improve(self, begins: Wholes, effort: Effort) -> Wholes:
        """Lower what ends above one height; return a plan that is no higher.

        ``begins`` is what it returned last, or a lower plan.
        """
        self.begins, self._ends = begins.copy(), begins + self._instance.size
        height = self._instance.height(begins)
        aim = effort.enough + int((height - effort.enough) * (1 - self._pace))
        down = True
        for number in self.above(aim):
            down = self.lower(number, aim, self._moves, effort.late) and down
            if effort.late():
                return self.begins.copy()
        if down:
            self._pace = min(self._pace * 1.2, _PACES[1])
            self._moves = max(self._moves // 2, _MOVES[0])
        else:
            self._pace = max(self._pace * 0.7, _PACES[0])
            self._moves = min(self._moves * 2, self._most)
        return self.begins.copy()

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
        for each, begin in self._moved.items():
            self.begins[each], self._ends[each] = (
                begin,
                begin + self._instance.size[each],
            )
        return False

    def _top(self, number: int, height: int) -> int:
        """Return up to where a buffer may reach, in grains, below a height in bytes."""
        return (height + int(self._instance.spare[number])) // self._instance.grain

    def _place(self, number: int, height: int) -> None:
        """Place a buffer in the tightest gap, or where it is least in the way."""
        self.work += 1
        size = int(self._instance.size[number])
        top = self._top(number, height)
        others = self._beside[number]
        begins, ends = self.begins[others], self._ends[others]
        places = Places(begins, ends, size, top)
        begin = places.tightest(top)
        if begin is None:
            begin = places.cheapest(self._weights[others], self._random)
            self._weights[number] += self._gains[number]
            for other in others[(begins < begin + size) & (ends > begin)].tolist():
                self._take_out(other)
        self.begins[number], self._ends[number] = begin, begin + size

    def _take_out(self, number: int) -> None:
        """Leave a buffer without a place; the largest gets one first."""
        self._moved.setdefault(number, int(self.begins[number]))
        self.begins[number] = self._ends[number] = _OUT
        heapq.heappush(self._homeless, (-int(self._instance.size[number]), number))


class Improver:
    """The best plan so far of an exact instance with buffers, and its height in bytes.

    Few buffers are both mended and searched, for about as long; many only mended. The
    plan is written to ``begins``, in place.
    """

    def __init__(self, instance: Instance, begins: Wholes, seed: int) -> None:
        self._instance, self._seed = instance, seed
        self.begins, self.height = begins, instance.height(begins)

    @cached_property
    def _tools(self) -> tuple[Mend | Search, ...]:
        # Not before they are needed: only the highest of many parts may be improved.
        mend = Mend(self._instance, self.begins, self._seed)
        if self._instance.count > FEW:
            return (mend,)
        return mend, Search(self._instance, self._seed)

    def step(self, effort: Effort) -> None:
        """Try once to get lower."""
        tool = min(self._tools, key=lambda each: each.work)
        self.begins[:] = tool.improve(self.begins, effort)
        self.height = self._instance.height(self.begins)


def improve(instance: Instance, begins: Wholes, effort: Effort, seed: int) -> Wholes:
    """Return the best plan found, at least as good as ``begins``, in grains.

    ``instance`` is exact, and has buffers. Where no buffer is in use, it falls apart;
    each step makes the part better that is highest.
    """
    best = begins.copy()
    parts = [
        Improver(part, best[start : start + part.count], seed)
        for start, part in instance.parts()
    ]
    while effort.step(max(part.height for part in parts)):
        max(parts, key=lambda each: each.height).step(effort)
    return best
