"""A silo: the blocks that one pool keeps for one stream and size class.

Its free blocks are in one sorted list of integers, size above and address below, so
that the first key not below a request's is the smallest block that fits, the lowest
of several. A block before unmapped addresses counts as large as it could grow: it
is taken last, and found by whoever asks for more than is mapped.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from sapwood.driver.api import StreamHandle
from sapwood.memory.caching.block import UNMAPPED, Block, Blocks, Segment
from sapwood.memory.caching.picture import SizeClass

if TYPE_CHECKING:
    from sapwood.memory.caching.pools import Pool

__all__ = ["ADDRESS_BITS", "ADDRESS_MASK", "Silo"]

ADDRESS_BITS: Final = 48
ADDRESS_MASK: Final = (1 << ADDRESS_BITS) - 1


class Silo:
    """Free blocks in order of size, and the segments they are parts of.

    ``plain``: all its segments are expandable, and every block is split to the byte;
    then the short way through `Allocator.malloc` and `free` serves it.
    """

    __slots__ = (
        "keys",
        "plain",
        "pool",
        "searches",
        "segments",
        "size_class",
        "stream",
    )

    def __init__(self, pool: Pool, stream: StreamHandle, size_class: SizeClass) -> None:
        self.pool, self.stream, self.size_class = pool, stream, size_class
        self.keys: list[int] = []
        self.segments: dict[Segment, None] = {}
        self.searches = 0
        self.plain = True

    def add(self, block: Block) -> None:
        """Index a free block."""
        size = block.size
        if block.next.state is UNMAPPED:
            size += block.next.size
        block.key = size << ADDRESS_BITS | block.address
        insort(self.keys, block.key)

    def remove(self, block: Block) -> None:
        """Take a free block out of the index."""
        del self.keys[bisect_left(self.keys, block.key)]

    def fits(self, blocks: Blocks, need: int) -> Iterator[Block]:
        """Yield the free blocks of at least ``need`` bytes, the best first."""
        keys = self.keys
        for at in range(bisect_left(keys, need << ADDRESS_BITS), len(keys)):
            block = blocks[keys[at] & ADDRESS_MASK]
            if block.size >= need:
                yield block

    def large_blocks(self, blocks: Blocks, least: int) -> Iterator[Block]:
        """Yield the free blocks of at least ``least`` bytes, the largest first."""
        for key in reversed(self.keys):
            if key >> ADDRESS_BITS < least:
                break
            yield blocks[key & ADDRESS_MASK]
