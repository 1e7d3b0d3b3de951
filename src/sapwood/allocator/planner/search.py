"""Search for a plan below a height, for few buffers that hardly fit.

Each dive places buffers from the bottom up, in a ranking of its own, and goes back
where something can no longer fit: not to the last choice, but to the last one that
takes part in the conflict. Buffers that conflicts are about rank higher in the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sapwood.allocator.planner.effort import Effort
from sapwood.allocator.planner.instance import Beside, Instance, Wholes
from sapwood.allocator.planner.orders import learners


class Sections:
    """Which buffers of an instance are in use in which section, and beside which.

    ``members`` are those of all sections one after the other, ``starts`` where each
    section's begin, ``loads`` what is in use in each, in grains. Buffer *n* is in use
    in the sections from ``first[n]`` until before ``last[n]``; ``beside[n]`` are the
    others that are in use in any of them.
    """

    def __init__(self, instance: Instance) -> None:
        lower, upper = instance.lower, instance.upper
        times = np.arange(int(upper.max()))
        used = (lower <= times[:, None]) & (upper > times[:, None])
        used = used[used.any(axis=1)]
        self.sizes, self.beside = instance.size, Beside(instance)
        self.members = np.nonzero(used)[1]
        self.starts = np.concatenate(([0], np.cumsum(used.sum(axis=1))[:-1]))
        self.first = used.argmax(axis=0)
        self.last = len(used) - used[::-1].argmax(axis=0)
        self.loads: Wholes = used @ instance.size


_PLACED = 1 << 61
"""Where buffers that are placed already could begin: above anything."""

_CHECKED_EVERY = 64


@dataclass(slots=True)
class _Node:
    """Some buffers are placed; the others can begin at ``lows`` at the least.

    ``rooms`` are what is left of each section's capacity for where the lowest of the
    others begins. ``causes[n]`` is the set of placed buffers that buffer *n* lies
    above, as bits. ``choices`` are to be placed next, the last one first; ``conflict``
    is the set of buffers because of which none of those tried so far led to a plan.
    """

    lows: Wholes
    rooms: Wholes
    causes: list[int]
    choices: list[int] = field(default_factory=list)
    conflict: int = 0
    chosen: int = -1


class Dive:
    """A dive in the order of ``ranking``, for a plan that ends at ``capacity``.

    It places buffers by rising offsets. When it goes back it may leave out plans, so
    not to find one proves nothing. ``blamed`` counts the conflicts that each buffer
    took part in, ``tries`` how often one was placed, or would not have helped.
    """

    def __init__(
        self, sections: Sections, ranking: npt.NDArray[np.intp], capacity: int
    ) -> None:
        self._ranking, self._capacity = ranking, capacity
        rank = np.empty_like(ranking)
        rank[ranking] = np.arange(len(ranking))
        self._sizes = sections.sizes[ranking]
        self._members = rank[sections.members]
        self._starts = sections.starts
        self._bounds: list[int] = [*sections.starts.tolist(), len(sections.members)]
        self._firsts, self._lasts = sections.first[ranking], sections.last[ranking]
        self._beside = [rank[sections.beside[n]] for n in ranking]
        self._rooms = capacity - sections.loads
        self._begins = [0] * len(ranking)
        self._above = [0] * len(ranking)
        self._blamed = [0] * len(ranking)
        self.tries = 0

    @property
    def blamed(self) -> npt.NDArray[np.float64]:
        """How many conflicts each buffer took part in."""
        blamed = np.zeros(len(self._ranking))
        blamed[self._ranking] = self._blamed
        return blamed

    def run(self, nodes: int, late: Callable[[], bool]) -> Wholes | None:
        """Return where each buffer begins, or None: not in so many nodes, or late."""
        count = len(self._ranking)
        root = _Node(np.zeros(count, np.int64), self._rooms, [0] * count)
        path = [root]
        self._choose(root, 0, 0)
        while nodes:
            self.tries += 1
            if self.tries % _CHECKED_EVERY == 0 and late():
                return None
            while not path[-1].choices:
                if not self._retreat(path):
                    return None
            node = path[-1]
            node.chosen = chosen = node.choices.pop()
            child = self._place(node, chosen)
            if child is None:
                continue
            path.append(child)
            nodes -= 1
            if len(path) > count:
                begins = np.empty(count, np.int64)
                begins[self._ranking] = self._begins
                return begins
            self._choose(child, self._begins[chosen], chosen)
        return None

    def _retreat(self, path: list[_Node]) -> bool:
        """Leave a node without choices for the last one in its conflict, if any."""
        conflict = path.pop().conflict
        while path:
            node = path[-1]
            if conflict >> node.chosen & 1:
                node.conflict |= conflict & ~(1 << node.chosen)
                return True
            path.pop()
        return False

    def _choose(self, node: _Node, floor: int, last: int) -> None:
        """Find what can lie lowest, not below what was placed last.

        Nothing need begin where the one that ends lowest could end. What keeps its
        neighbours from beginning below that takes part in any conflict here.
        """
        ends = node.lows + self._sizes
        lowest = int(ends.argmin())
        end = int(ends[lowest])
        beside = self._beside[lowest]
        raised = beside[(node.lows[beside] >= end) & (node.lows[beside] < _PLACED)]
        node.conflict = node.causes[lowest]
        for n in raised.tolist():
            node.conflict |= node.causes[n]
        near = np.flatnonzero((node.lows < end) & (node.lows >= floor))
        near = near[np.argsort(node.lows[near], kind="stable")]
        node.choices = near[(node.lows[near] > floor) | (near >= last)][::-1].tolist()

    def _place(self, node: _Node, chosen: int) -> _Node | None:
        """Return the node with a buffer placed; None, and why, where that is no use."""
        begin, size = int(node.lows[chosen]), int(self._sizes[chosen])
        end = begin + size
        self._begins[chosen] = begin
        above = self._above[chosen] = node.causes[chosen] | 1 << chosen
        first, last = int(self._firsts[chosen]), int(self._lasts[chosen])
        own = node.rooms[first:last] + size
        full = (own < end) & ((own < self._capacity) | (end > self._capacity))
        section = int(full.argmax())
        if full[section]:
            members = self._blame(first + section, node.lows, node.causes, end)
            self._reject(node, chosen, above | members)
            return None
        lows, causes = node.lows.copy(), node.causes.copy()
        beside = self._beside[chosen]
        raised = beside[lows[beside] < end]
        lows[raised] = end
        lows[chosen] = _PLACED
        for n in raised.tolist():
            causes[n] = above
        rooms = node.rooms.copy()
        rooms[first:last] = own
        child = _Node(lows, rooms, causes)
        conflict = self._examine(child, chosen, raised)
        if conflict is not None:
            self._reject(node, chosen, conflict)
            return None
        return child

    def _examine(
        self, node: _Node, placed: int, raised: npt.NDArray[np.intp]
    ) -> int | None:
        """Return why what is left can no longer fit; None where it may.

        Only sections are looked at whose buffers were ``placed`` or ``raised`` last.
        """
        first, last = int(self._firsts[placed]), int(self._lasts[placed])
        if len(raised):
            first = min(first, int(self._firsts[raised].min()))
            last = max(last, int(self._lasts[raised].max()))
        rooms = node.rooms[first:last]
        start, stop = self._bounds[first], self._bounds[last]
        # How low any buffer that is left can begin in each of the sections.
        lows = node.lows[self._members[start:stop]]
        lowest = np.minimum.reduceat(lows, self._starts[first:last] - start)
        unfit = (lowest > rooms) | (rooms < self._begins[placed])
        full = unfit & (rooms < self._capacity)
        section = int(full.argmax())
        if not full[section]:
            return None
        conflict = self._blame(first + section, node.lows, node.causes, 0)
        if lowest[section] <= rooms[section]:
            conflict |= self._above[placed]
        return conflict

    def _reject(self, node: _Node, chosen: int, conflict: int) -> None:
        """Note why a choice is no use; where it takes no part in that, none is."""
        if conflict >> chosen & 1:
            node.conflict |= conflict & ~(1 << chosen)
        else:
            node.conflict = conflict
            node.choices.clear()

    def _blame(self, section: int, lows: Wholes, causes: list[int], raised: int) -> int:
        """Return which placed buffers fill a section, or lift others out of it.

        Those that could begin below ``raised`` are known to be lifted.
        """
        members = self._members[self._bounds[section] : self._bounds[section + 1]]
        conflict = 0
        for n, low in zip(members.tolist(), lows[members].tolist(), strict=True):
            if low == _PLACED:
                conflict |= self._above[n]
            else:
                self._blamed[n] += 1
                if low >= raised:
                    conflict |= causes[n]
        return conflict


FEW = 1000
"""With more buffers than this, a search does not get far in any usual time."""

_NODES = 100
_WORK = 1 / 400
_SHARES = (0.0, 0.0, 0.9, 0.0, 0.5, 0.75)
"""How far above the goal dives aim, as parts of the way to the best height so far."""


class Search:
    """Dives for plans of an exact instance with buffers; each learns for the next.

    ``work`` is about how long they took so far, to compare with that of a `Mend`; as
    that is scaled, dives get most of the time.
    """

    def __init__(self, instance: Instance, seed: int) -> None:
        self._instance = instance
        self._sections = Sections(instance)
        self._turns = itertools.cycle(
            itertools.product(_SHARES, learners(instance, seed))
        )
        self.work = 0.0

    def improve(self, begins: Wholes, effort: Effort) -> Wholes:
        """Dive once. Return what it found if that is lower, else ``begins``."""
        instance, height = self._instance, self._instance.height(begins)
        share, learner = next(self._turns)
        aim = min(effort.enough + int((height - effort.enough) * share), height - 1)
        dive = Dive(self._sections, learner.ranking(), instance.top_within(aim))
        found = dive.run(_NODES + 2 * instance.count, effort.late)
        self.work += dive.tries * instance.count * _WORK
        learner.learn(dive.blamed)
        return begins if found is None or instance.height(found) >= height else found
