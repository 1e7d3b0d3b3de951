"""A silo: the blocks that one pool keeps for one stream and size class.

Its free blocks are in order of size, those of one size in order of address, so that
the first that is not too small is the smallest block that fits, the lowest of
several. A block before unmapped addresses counts as large as it could grow: it is
taken last, and found by whoever asks for more than is mapped.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from sapwood.driver.api import StreamHandle
from sapwood.memory.caching.block import FREE, UNMAPPED, Block, Blocks, Segment
from sapwood.memory.caching.picture import SizeClass
from sapwood.units import Addr, Size

if TYPE_CHECKING:
    from sapwood.memory.caching.pools import Pool

__all__ = ["Silo"]

_BEYOND: Final = 1 << 62
_EDGES: Final = 0, _BEYOND

_address: Final = attrgetter("address")


class Silo:
    """Free blocks in order of size, and the segments they are parts of.

    ``free`` are the blocks, ``sizes`` what each counts as. Both begin and end with an
    edge, which serves nobody, so that every block has two neighbours there.
    ``plain``: all its segments are expandable, and every block is split to the byte;
    then the short way through `Allocator.malloc` and `free` serves it.
    """

    __slots__ = (
        "free",
        "plain",
        "pool",
        "searches",
        "segments",
        "size_class",
        "sizes",
        "stream",
    )

    def __init__(self, pool: Pool, stream: StreamHandle, size_class: SizeClass) -> None:
        self.pool, self.stream, self.size_class = pool, stream, size_class
        edge = Segment(Addr(0), Size(0), self, expandable=True).guard
        self.free, self.sizes = [edge, edge], [*_EDGES]
        self.segments: dict[Segment, None] = {}
        self.searches = 0
        self.plain = True

    def blocks(self) -> list[Block]:
        """Return the free blocks in their order."""
        return self.free[1:-1]

    def is_empty(self) -> bool:
        """Return whether no block is free."""
        return len(self.free) == len(_EDGES)

    def add(self, block: Block) -> None:
        """Index a free block."""
        size = block.size
        if block.next.state is UNMAPPED:
            size += block.next.size
        block.reach = size
        at = bisect_left(self.sizes, size)
        if self.sizes[at] == size:
            at = self.place(block, at)
        self.sizes.insert(at, size)
        self.free.insert(at, block)

    def remove(self, block: Block) -> None:
        """Take a free block out of the index."""
        at = bisect_left(self.sizes, block.reach)
        if self.free[at] is not block:
            at = self.place(block, at)
        del self.sizes[at], self.free[at]

    def place(self, block: Block, first: int) -> int:
        """Return where a block is, or goes, among those of its size from ``first``."""
        last = bisect_right(self.sizes, block.reach, first)
        return bisect_left(self.free, block.address, first, last, key=_address)

    def fits(self, need: int) -> Iterator[Block]:
        """Yield the free blocks of at least ``need`` bytes, the best first."""
        for at in range(bisect_left(self.sizes, need), len(self.free) - 1):
            block = self.free[at]
            if block.size >= need:
                yield block

    def large_blocks(self, least: int) -> Iterator[Block]:
        """Yield the free blocks of at least ``least`` bytes, the largest first."""
        yield from reversed(self.free[bisect_left(self.sizes, least) : -1])

    # What a hit does, each in one piece: calls would cost more than the work.

    def cut(self, need: int, blocks: Blocks, spare: list[Block]) -> Block | None:
        """Take the best fit out of the index and give back what is too much of it.

        None where no block of that size is mapped. ``spare`` are blocks of nothing.
        """
        sizes, free = self.sizes, self.free
        at = bisect_left(sizes, need)
        block = free[at]
        more = block.size - need
        if more < 0:
            return None
        if more == 0:
            del sizes[at], free[at]
            return block
        start = block.address + need
        rest = spare.pop() if spare else Block(start, more, block.segment)
        rest.address, rest.size = start, more  # type: ignore[assignment]
        rest.segment, rest.prev = block.segment, block
        after = rest.next = block.next
        after.prev = block.next = blocks[start] = rest
        block.size = need
        if after.state is UNMAPPED:
            more += after.size
        if sizes[at - 1] < more:
            sizes[at] = rest.reach = more
            free[at] = rest
        else:
            del sizes[at], free[at]
            self.add(rest)
        return block

    def join(self, block: Block, blocks: Blocks, spare: list[Block]) -> None:
        """Index a block that is free now, as one with its free neighbours."""
        sizes, free = self.sizes, self.free
        size, at = block.size, 0
        after = block.next
        if after.state is FREE:
            at = bisect_left(sizes, after.reach)
            if free[at] is not after:
                at = self.place(after, at)
            del blocks[after.address]
            size += after.size
            spare.append(after)
            after = block.next = after.next
            after.prev = block
        before = block.prev
        if before.state is FREE:
            if at:
                del sizes[at], free[at]
            at = bisect_left(sizes, before.reach)
            if free[at] is not before:
                at = self.place(before, at)
            del blocks[block.address]
            size += before.size
            before.next, after.prev = after, before
            spare.append(block)
            block = before
        block.size = size
        if after.state is UNMAPPED:
            size += after.size
        block.reach = size
        if at and size < sizes[at + 1]:
            sizes[at], free[at] = size, block
            return
        if at:
            del sizes[at], free[at]
        at = bisect_left(sizes, size)
        if sizes[at] == size:
            at = self.place(block, at)
        sizes.insert(at, size)
        free.insert(at, block)
