"""Blocks inside one growing interval of addresses: best fit, split and merge.

Pure bookkeeping: no driver, no streams. A free block carries a set of tags, whatever
its owner must heed before reusing it; merging unites them. The general caching
allocator is built beside this, not into it.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from sapwood.errors import InternalError
from sapwood.units import Addr, Size, align_up, hex_address

ALIGNMENT: Final = 512
"""Every block starts and ends on a multiple of this, as in CUDA's allocators."""

Tags = frozenset[Hashable]


@dataclass(frozen=True, slots=True)
class _Free:
    start: int
    end: int
    tags: Tags


class Blocks:
    """Blocks of ``[start, end)``; ``end`` grows and shrinks."""

    def __init__(self, start: Addr) -> None:
        self.start = start
        self.end = start
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
        free = self._by_start[self._by_size[at][1]]
        self._remove(free)
        if free.start + need < free.end:
            self._add(_Free(free.start + need, free.end, free.tags))
        address = Addr(free.start)
        self.taken[address] = Size(need)
        return address, free.tags

    def give(self, address: Addr, tags: Tags = frozenset()) -> None:
        """Give a block back."""
        size = self.taken.pop(address, None)
        if size is None:
            raise InternalError(f"a block is given back once: {hex_address(address)}")
        self._add(self._merged(_Free(address, address + size, tags)))

    def missing(self, size: Size) -> Size:
        """Return by how much `end` must grow for ``size`` bytes to fit there."""
        tail = self._by_end.get(self.end)
        need = max(align_up(size, ALIGNMENT), ALIGNMENT)
        return Size(need - (tail.end - tail.start if tail else 0))

    def grow(self, size: Size) -> None:
        """Add ``size`` free bytes at the end."""
        grown = _Free(self.end, self.end + size, frozenset())
        self.end = Addr(self.end + size)
        self._add(self._merged(grown))

    def tail(self) -> tuple[Size, Tags]:
        """Return the size and tags of the free block at the end, if there is one."""
        free = self._by_end.get(self.end)
        return (Size(free.end - free.start), free.tags) if free else (Size(0), Tags())

    def shrink(self, size: Size) -> None:
        """Remove ``size`` free bytes from the end."""
        free = self._by_end[self.end]
        self._remove(free)
        self.end = Addr(self.end - size)
        if free.start < self.end:
            self._add(_Free(free.start, self.end, free.tags))

    def free(self) -> tuple[tuple[Addr, Addr], ...]:
        """Return the free intervals in address order."""
        return tuple(
            (Addr(f.start), Addr(f.end)) for _, f in sorted(self._by_start.items())
        )

    def _merged(self, free: _Free) -> _Free:
        start, end, tags = free.start, free.end, free.tags
        if before := self._by_end.get(start):
            self._remove(before)
            start, tags = before.start, tags | before.tags
        if after := self._by_start.get(end):
            self._remove(after)
            end, tags = after.end, tags | after.tags
        return _Free(start, end, tags)

    def _add(self, free: _Free) -> None:
        bisect.insort(self._by_size, (free.end - free.start, free.start))
        self._by_start[free.start] = free
        self._by_end[free.end] = free

    def _remove(self, free: _Free) -> None:
        at = bisect.bisect_left(self._by_size, (free.end - free.start, free.start))
        del self._by_size[at]
        del self._by_start[free.start], self._by_end[free.end]
