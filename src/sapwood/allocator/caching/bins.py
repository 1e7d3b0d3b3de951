"""A bin: the blocks that one pool keeps for one stream and size class.

Its free blocks are in order of size, those of one size in order of address, so that
the first that is not too small is the smallest block that fits, the lowest of
several. A block before unmapped addresses counts as large as it could grow: it is
taken last, and found by whoever asks for more than is mapped.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from sapwood.allocator.caching.block import (
    ALLOCATED,
    FREE,
    UNMAPPED,
    Block,
    Blocks,
    Segment,
)
from sapwood.allocator.caching.picture import SizeClass
from sapwood.allocator.caching.records.history import NO_STACK
from sapwood.driver.api import StreamHandle
from sapwood.units import Addr, Size

if TYPE_CHECKING:
    from sapwood.allocator.caching.pools import Pool

_BEYOND: Final = 1 << 62
_EDGES: Final = 0, _BEYOND

_address: Final = attrgetter("address")


@dataclass(slots=True, eq=False)
class Bin:
    """Free blocks in order of size, and the segments they are parts of.

    ``free`` are the blocks, ``sizes`` what each counts as. Both begin and end with an
    edge, which serves nobody, so that every block has two neighbours there.
    ``plain``: all its segments are expandable, and every block is split to the byte;
    then the short way through `Allocator.malloc` and `free` serves it.
    """

    pool: Pool
    stream: StreamHandle
    size_class: SizeClass
    free: list[Block] = field(init=False)
    sizes: list[int] = field(init=False)
    segments: dict[Segment, None] = field(init=False, default_factory=dict)
    searches: int = field(init=False, default=0)
    plain: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        """Have edges, and no blocks."""
        edge = Segment(Addr(0), Size(0), self, expandable=True).guard
        self.free, self.sizes = [edge, edge], [*_EDGES]

    def blocks(self) -> list[Block]:
        """Return the free blocks in their order."""
        return self.free[1:-1]

    def is_empty(self) -> bool:
        """Return whether no block is free."""
        return len(self.free) == len(_EDGES)

    def add(self, block: Block) -> None:
        """Index a free block."""
        reach = block.size
        if block.next.state is UNMAPPED:
            reach += block.next.size
        at = bisect_left(self.sizes, reach)
        if self.sizes[at] == reach:
            at = self._place(reach, block.address, at)
        block.reach = reach
        self.sizes[at:at] = (reach,)
        self.free[at:at] = (block,)

    def remove(self, block: Block) -> None:
        """Take a free block out of the index."""
        at = bisect_left(self.sizes, block.reach)
        if self.free[at] is not block:
            at = self._place(block.reach, block.address, at)
        del self.sizes[at], self.free[at]

    def _place(self, reach: int, address: int, first: int) -> int:
        """Return where a block is, or goes, among those of its size from ``first``."""
        last = bisect_right(self.sizes, reach, first)
        return bisect_left(self.free, address, first, last, key=_address)

    def fits(self, need: int) -> Iterator[Block]:
        """Yield the free blocks of at least ``need`` bytes, the best first."""
        for at in range(bisect_left(self.sizes, need), len(self.free) - 1):
            block = self.free[at]
            if block.size >= need:
                yield block

    def large_blocks(self, least: int) -> Iterator[Block]:
        """Yield the free blocks of at least ``least`` bytes, the largest first."""
        yield from reversed(self.free[bisect_left(self.sizes, least) : -1])

    # What a hit does. Nothing is called from where state changes first, so that an
    # interrupt, which comes where something is called, leaves all as it was.

    def cut(
        self, need: int, asked: int, blocks: Blocks, spare: list[Block]
    ) -> Block | None:
        """Let the best fit be allocated, and give back what is too much of it.

        None where no block of that size is mapped. ``spare`` are blocks of nothing.
        """
        sizes, free = self.sizes, self.free
        at = bisect_left(sizes, need)
        block = free[at]
        more = block.size - need
        if more < 0:
            return None
        if more == 0:
            block.requested, block.state = asked, ALLOCATED
            del sizes[at], free[at]
            return block
        start, after = block.address + need, block.next
        reach = more + after.size if after.state is UNMAPPED else more
        to = at
        if sizes[at - 1] >= reach:
            to = bisect_left(sizes, reach)
            if sizes[to] == reach:
                to = self._place(reach, start, to)
        # A call of Addr costs as much as all the rest of a block.
        rest = spare.pop() if spare else Block(start, more, block.segment)  # type: ignore[arg-type]
        rest.address, rest.size, rest.reach = start, more, reach  # type: ignore[assignment]
        rest.segment, rest.prev, rest.next = block.segment, block, after
        after.prev = block.next = blocks[start] = rest
        block.size, block.requested, block.state = need, asked, ALLOCATED
        if to == at:
            sizes[at], free[at] = reach, rest
        else:
            del sizes[at], free[at]
            sizes[to:to] = (reach,)
            free[to:to] = (rest,)
        return block

    def join(self, block: Block, blocks: Blocks, spare: list[Block]) -> Block:
        """Let a block be free, as one with its free neighbours; return the whole.

        What becomes a part of another block is added to ``spare``.
        """
        sizes, free = self.sizes, self.free
        before, after = block.prev, block.next
        whole, beyond, size = block, after, block.size
        at = other = 0
        if after.state is FREE:
            beyond, size = after.next, size + after.size
            at = bisect_left(sizes, after.reach)
            if free[at] is not after:
                at = self._place(after.reach, after.address, at)
        if before.state is FREE:
            whole, size, other = before, size + before.size, at
            at = bisect_left(sizes, before.reach)
            if free[at] is not before:
                at = self._place(before.reach, before.address, at)
        reach = size + beyond.size if beyond.state is UNMAPPED else size
        to = at + 1
        if not at or reach >= sizes[to]:
            to = bisect_left(sizes, reach, to)
            if sizes[to] == reach:
                to = self._place(reach, whole.address, to)
        if to - at == 1 and at and not other:
            sizes[at], free[at] = reach, whole
        else:
            self._move(at, other, to, reach, whole)
        whole.reach = reach
        block.state, block.requested, block.stack = FREE, 0, NO_STACK
        if beyond is not after:
            del blocks[after.address]
            spare += (after,)
        if whole is not block:
            del blocks[block.address]
            spare += (block,)
        whole.size, whole.next, beyond.prev = size, beyond, whole
        return whole

    def _move(self, at: int, other: int, to: int, reach: int, block: Block) -> None:
        """Index a block before ``to``, and none at two other places; 0 is none."""
        sizes, free = self.sizes, self.free
        if other:
            lo, hi = (at, other) if at < other else (other, at)
            del sizes[hi], free[hi], sizes[lo], free[lo]
            to -= 2
        elif at:
            del sizes[at], free[at]
            to -= 1
        sizes[to:to] = (reach,)
        free[to:to] = (block,)
