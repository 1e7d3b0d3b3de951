"""One dive for a plan below a capacity: depth first, in a given ranking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sapwood.memory.planner.instance import Wholes
from sapwood.memory.planner.sections import Sections

__all__ = ["Dive"]

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

    ``monotone`` ones place buffers by rising offsets only. That leaves out whole plans
    when it goes back, but finds others faster. ``blamed`` counts the conflicts
    that each buffer took part in.
    """

    def __init__(
        self,
        sections: Sections,
        ranking: npt.NDArray[np.intp],
        capacity: int,
        *,
        monotone: bool,
    ) -> None:
        self._ranking, self._capacity = ranking, capacity
        self._monotone = monotone
        rank = np.empty_like(ranking)
        rank[ranking] = np.arange(len(ranking))
        self._sizes = sections.sizes[ranking]
        self._size: list[int] = self._sizes.tolist()
        self._members = rank[sections.members]
        self._starts = sections.starts
        self._first: list[int] = sections.first[ranking].tolist()
        self._last: list[int] = sections.last[ranking].tolist()
        self._beside = [rank[sections.beside[n]] for n in ranking]
        self._rooms = capacity - sections.loads
        self._begins = [0] * len(ranking)
        self._above = [0] * len(ranking)
        self._blamed = [0] * len(ranking)

    @property
    def blamed(self) -> npt.NDArray[np.float64]:
        """How many conflicts each buffer took part in."""
        blamed = np.zeros(len(self._ranking))
        blamed[self._ranking] = self._blamed
        return blamed

    def run(self, nodes: int, late: Callable[[], bool]) -> Wholes | None:
        """Return where each buffer begins, or None: not within ``nodes``, or late."""
        count = len(self._ranking)
        root = _Node(np.zeros(count, np.int64), self._rooms, [0] * count)
        path = [root]
        self._choose(root, 0, 0)
        for tried in range(nodes):
            if tried % _CHECKED_EVERY == 0 and tried and late():
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
        """Find what can lie lowest: one of these does, in any plan from here."""
        ends = node.lows + self._sizes
        lowest = int(ends.argmin())
        end = int(ends[lowest])
        if self._monotone:
            near = np.flatnonzero(node.lows < end)
            pairs = [
                (low, n)
                for n, low in zip(near.tolist(), node.lows[near].tolist(), strict=True)
                if low > floor or (low == floor and n >= last)
            ]
        else:
            beside = self._beside[lowest]
            lows = node.lows[beside].tolist()
            pairs = [(int(node.lows[lowest]), lowest)]
            node.conflict = node.causes[lowest]
            for n, low in zip(beside.tolist(), lows, strict=True):
                if low < end:
                    pairs.append((low, n))
                elif low < _PLACED:
                    node.conflict |= node.causes[n]
        pairs.sort(reverse=True)
        node.choices = [n for _, n in pairs]

    def _place(self, node: _Node, chosen: int) -> _Node | None:
        """Return the node with a buffer placed; None, and why, where that is no use."""
        begin, size = int(node.lows[chosen]), self._size[chosen]
        end = begin + size
        self._begins[chosen] = begin
        above = self._above[chosen] = node.causes[chosen] | 1 << chosen
        first, last = self._first[chosen], self._last[chosen]
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
        lowest = np.minimum.reduceat(lows[self._members], self._starts)
        full = lowest > rooms
        if self._monotone:
            full |= rooms < begin
        full &= rooms < self._capacity
        section = int(full.argmax())
        if full[section]:
            conflict = self._blame(section, lows, causes, 0)
            if lowest[section] <= rooms[section]:
                conflict |= above
            self._reject(node, chosen, conflict)
            return None
        return _Node(lows, rooms, causes)

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
        starts = self._starts
        stop = starts[section + 1] if section + 1 < len(starts) else None
        members = self._members[starts[section] : stop]
        conflict = 0
        for n, low in zip(members.tolist(), lows[members].tolist(), strict=True):
            if low == _PLACED:
                conflict |= self._above[n]
            else:
                self._blamed[n] += 1
                if low >= raised:
                    conflict |= causes[n]
        return conflict
