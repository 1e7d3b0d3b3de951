"""Blocks after their memory came or went; nothing here can fail."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import attrgetter
from typing import Final, NamedTuple

from sapwood.allocator.caching.block import (
    FREE,
    UNMAPPED,
    Block,
    Blocks,
    Extent,
    Segment,
    merge_next,
    size_of,
    split,
)
from sapwood.units import Addr, Size, align_up

_start: Final = attrgetter("address")
_end: Final = attrgetter("end")


class Window(NamedTuple):
    """Where a block would fit in a segment, if some pieces of it were mapped.

    Each piece begins an unmapped block.
    """

    segment: Segment
    address: Addr
    pieces: tuple[Extent, ...]


def window(segments: Iterable[Segment], need: int, page: int) -> Window | None:
    """Return the window that takes the least memory, the lowest of several."""
    windows = [
        found
        for segment in segments
        if segment.expandable
        for hole in segment.holes
        if (found := _window_at(hole, need, page)) is not None
    ]
    return min(windows, key=lambda w: (size_of(w.pieces), w.address), default=None)


def _window_at(hole: Block, need: int, page: int) -> Window | None:
    """Return the window that begins before, or with, an unmapped block."""
    block = hole.prev if hole.prev.state is FREE else hole
    address, have = block.address, 0
    pieces: list[Extent] = []
    while have < need:
        if block.state is UNMAPPED:
            size = min(block.size, align_up(need - have, page))
            pieces.append(Extent(block.address, Size(size)))
            have += size
        elif block.state is FREE:
            have += block.size
        else:
            return None
        block = block.next
    return Window(hole.segment, address, tuple(pieces))


Donor = tuple[Segment, Extent]
"""An extent whose memory may serve elsewhere, with the segment that has or had it."""


class Supply(NamedTuple):
    """Where the memory for a window comes from: moved to addresses, and created."""

    moves: dict[Addr, Donor]
    created: list[Extent]


def supply(pieces: Iterable[Extent], most: int, donors: Iterable[Donor] = ()) -> Supply:
    """Return how to fill a window's pieces: with extents of donors that fit.

    The rest is created, in extents of at most ``most`` bytes.
    """
    moves: dict[Addr, Donor] = {}
    left = {piece.address: piece.size for piece in pieces}
    for segment, extent in donors:
        at = next((at for at, size in left.items() if size >= extent.size), None)
        if at is not None:
            moves[at] = segment, extent
            rest = Size(left.pop(at) - extent.size)
            if rest:
                left[Addr(at + extent.size)] = rest
        if not left:
            break
    created = [
        Extent(Addr(address + done), Size(min(most, size - done)))
        for address, size in sorted(left.items())
        for done in range(0, size, most)
    ]
    return Supply(moves, created)


def join_free(blocks: Blocks, block: Block) -> Block:
    """Merge a block, in no index, with free neighbours; index the whole.

    Returns the free block. Unmapped ones behind it count for its place.
    """
    bin_ = block.segment.bin
    if block.next.state is FREE:
        bin_.remove(block.next)
        merge_next(blocks, block)
    if block.prev.state is FREE:
        block = block.prev
        bin_.remove(block)
        merge_next(blocks, block)
    block.state = FREE
    bin_.add(block)
    return block


def mapped(blocks: Blocks, segment: Segment, extents: Iterable[Extent]) -> None:
    """Let extents of unmapped blocks be free: they were mapped."""
    for extent in extents:
        at, hole = extent.address, blocks.get(extent.address)
        if hole is None:
            before = next(
                hole for hole in segment.holes if hole.address < at < hole.end
            )
            hole = split(blocks, before, at - before.address)
            segment.holes[hole] = None
            _reindex(before.prev)
        del segment.holes[hole]
        if extent.size < hole.size:
            segment.holes[split(blocks, hole, extent.size)] = None
        join_free(blocks, hole)


def extents_in(block: Block) -> list[Extent]:
    """Return the extents that lie in a block as a whole."""
    extents = block.segment.extents
    first = bisect_left(extents, block.address, key=_start)
    last = bisect_right(extents, block.end, first, key=_end)
    return extents[first:last]


def idle_extents(segment: Segment) -> list[Extent]:
    """Return the extents that lie in free blocks as a whole."""
    free = (block for block in segment.blocks() if block.state is FREE)
    return [extent for block in free for extent in extents_in(block)]


def unmapped(blocks: Blocks, segment: Segment, extents: Iterable[Extent]) -> None:
    """Let the addresses of idle extents be unmapped."""
    block = segment.guard.next
    for extent in sorted(extents):
        while block.end < extent.end:
            block = block.next
        block = _cut(blocks, block, extent)


def _cut(blocks: Blocks, block: Block, extent: Extent) -> Block:
    """Let a part of a free block be unmapped; return the unmapped block around it."""
    segment, bin_ = block.segment, block.segment.bin
    bin_.remove(block)
    if block.address < extent.address:
        before, block = block, split(blocks, block, extent.address - block.address)
        bin_.add(before)
    if extent.end < block.end:
        bin_.add(split(blocks, block, extent.size))
    block.state = UNMAPPED
    segment.holes[block] = None
    if block.next.state is UNMAPPED:
        del segment.holes[block.next]
        merge_next(blocks, block)
    if block.prev.state is UNMAPPED:
        del segment.holes[block]
        block = block.prev
        merge_next(blocks, block)
    _reindex(block.prev)
    return block


def _reindex(block: Block) -> None:
    """Index a block anew, if it is free: it counts as large as it could grow."""
    if block.state is FREE:
        block.segment.bin.remove(block)
        block.segment.bin.add(block)
