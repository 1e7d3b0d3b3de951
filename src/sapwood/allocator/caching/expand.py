"""Blocks after their memory came or went; nothing here can fail."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping

from sapwood.allocator.caching.block import (
    FREE,
    UNMAPPED,
    Block,
    Blocks,
    Extent,
    Segment,
    merge_next,
    split,
)
from sapwood.allocator.caching.growth import Piece
from sapwood.units import Addr

__all__ = [
    "blocks_of",
    "extents_in",
    "idle_extents",
    "join_free",
    "mapped",
    "remapped",
    "unmapped",
]


def join_free(blocks: Blocks, block: Block) -> Block:
    """Merge a block, in no index, with free neighbours; index the whole.

    Returns the free block. Unmapped ones behind it count for its place.
    """
    silo = block.segment.silo
    if block.next.state is FREE:
        silo.remove(block.next)
        merge_next(blocks, block)
    if block.prev.state is FREE:
        block = block.prev
        silo.remove(block)
        merge_next(blocks, block)
    block.state = FREE
    silo.add(block)
    return block


def mapped(blocks: Blocks, segment: Segment, pieces: Iterable[Piece]) -> None:
    """Let pieces of unmapped blocks be free: they were mapped."""
    for piece in pieces:
        hole = blocks[piece.address]
        del segment.holes[hole]
        if piece.size < hole.size:
            segment.holes[split(blocks, hole, piece.size)] = None
        join_free(blocks, hole)


def extents_in(block: Block) -> list[Extent]:
    """Return the extents that lie in a block as a whole."""
    extents = block.segment.extents
    first = bisect_left(extents, block.address, key=_start)
    last = bisect_right(extents, block.address + block.size, first, key=_end)
    return extents[first:last]


def _start(extent: Extent) -> Addr:
    return extent.address


def _end(extent: Extent) -> int:
    return extent.address + extent.size


def idle_extents(segment: Segment) -> list[Extent]:
    """Return the extents that lie in free blocks as a whole."""
    free = (block for block in segment.blocks() if block.state is FREE)
    return [extent for block in free for extent in extents_in(block)]


def blocks_of(segment: Segment) -> dict[Extent, Block]:
    """Return the idle extents with the blocks that they lie in."""
    free = (block for block in segment.blocks() if block.state is FREE)
    return {extent: block for block in free for extent in extents_in(block)}


def remapped(blocks: Blocks, segment: Segment, extents: Iterable[Extent]) -> None:
    """Let addresses that `unmapped` was told of be free again."""
    for extent in extents:
        at = extent.address
        hole = next(hole for hole in segment.holes if hole.address <= at < hole.end)
        if hole.address < at:
            segment.holes[split(blocks, hole, at - hole.address)] = None
            _reindex(hole.prev)
        mapped(blocks, segment, [Piece(at, extent.size)])


def _reindex(block: Block) -> None:
    """Index a block anew, if it is free: it counts as large as it could grow."""
    if block.state is FREE:
        block.segment.silo.remove(block)
        block.segment.silo.add(block)


def unmapped(blocks: Blocks, gone: Mapping[Extent, Block]) -> None:
    """Let the addresses of extents be unmapped.

    Each lay in a free block, which may have been merged with others since.
    """
    for extent in sorted(gone):
        block = gone[extent]
        if blocks.get(block.address) is not block:
            block = block.segment.guard.next
        while block.end < extent.end:
            block = block.next
        _cut(blocks, block, extent)


def _cut(blocks: Blocks, block: Block, extent: Extent) -> None:
    segment, silo = block.segment, block.segment.silo
    silo.remove(block)
    before = block
    if block.address < extent.address:
        block = split(blocks, block, extent.address - block.address)
    if extent.end < block.end:
        rest = split(blocks, block, extent.size)
        silo.add(rest)
    block.state = UNMAPPED
    segment.holes[block] = None
    if block.next.state is UNMAPPED:
        del segment.holes[block.next]
        merge_next(blocks, block)
    if block.prev.state is UNMAPPED:
        del segment.holes[block]
        block = block.prev
        merge_next(blocks, block)
    if before.state is FREE:
        silo.add(before)
    else:
        _reindex(block.prev)
