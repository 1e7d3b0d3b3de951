"""Blocks inside one growing interval of addresses: best fit, split and merge.

Pure bookkeeping: no driver, no streams. A free block carries a set of tags, whatever
its owner must heed before reusing it; merging unites them. The general caching
allocator is built beside this, not into it.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple

from sapwood.errors import InternalError
from sapwood.units import Addr, Size, align_up, hex_address

ALIGNMENT: Final = 512
"""Every block starts and ends on a multiple of this, as in CUDA's allocators."""

Tags = frozenset[Hashable]


class _Free(NamedTuple):
    start: int
    end: int
    tags: Tags


class Blocks:
    """Blocks of ``[start, end)``; ``end`` grows, up to ``stop``."""

    def __init__(self, start: Addr, stop: Addr) -> None:
        self.start = self.end = start
        self.stop = stop
        self.taken: dict[Addr, Size] = {}
        self._by_size: list[tuple[int, int]] = []
        self._by_start: dict[int, _Free] = {}
        self._by_end: dict[int, _Free] = {}

    def take(self, size: Size) -> tuple[Addr, Tags] | None:
        """Take the smallest free block that fits, the lowest of several."""
        need = max(align_up(size, ALIGNMENT), ALIGNMENT)
        at = bisect.bisect_left(self._by_size, (need, 0))
        if at == len(self._by_size):
            return None
        start, end, tags = self._remove(self._by_start[self._by_size[at][1]])
        if start + need < end:
            self._add(start + need, end, tags)
        address = Addr(start)
        self.taken[address] = Size(need)
        return address, tags

    def give(self, address: Addr, tags: Iterable[Hashable] = ()) -> None:
        """Give a block back."""
        size = self.taken.pop(address, None)
        if size is None:
            raise InternalError(f"a block is given back once: {hex_address(address)}")
        self._add(address, address + size, frozenset(tags))

    def missing(self, size: Size) -> Size:
        """Return by how much `end` must grow for ``size`` bytes to fit there."""
        tail = self._by_end.get(self.end)
        need = max(align_up(size, ALIGNMENT), ALIGNMENT)
        return Size(need - (tail.end - tail.start if tail else 0))

    def grow(self, size: Size) -> None:
        """Add ``size`` free bytes at the end."""
        start, self.end = self.end, Addr(self.end + size)
        self._add(start, self.end, frozenset())

    def _add(self, start: int, end: int, tags: Tags) -> None:
        """Let an interval be free, as one with what is free beside it."""
        if before := self._by_end.get(start):
            start, tags = self._remove(before).start, tags | before.tags
        if after := self._by_start.get(end):
            end, tags = self._remove(after).end, tags | after.tags
        bisect.insort(self._by_size, (end - start, start))
        self._by_start[start] = self._by_end[end] = _Free(start, end, tags)

    def _remove(self, free: _Free) -> _Free:
        at = bisect.bisect_left(self._by_size, (free.end - free.start, free.start))
        del self._by_size[at], self._by_start[free.start], self._by_end[free.end]
        return free
