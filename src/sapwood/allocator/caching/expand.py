"""Blocks after their memory came or went; nothing here can fail."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
from sapwood.units import Addr, Size, align_up


@dataclass(frozen=True, slots=True)
class Piece:
    """Unmapped addresses to map: they begin an unmapped block."""

    address: Addr
    size: Size


@dataclass(frozen=True, slots=True)
class Window:
    """Where ``size`` bytes would fit in a segment, if some pieces were mapped."""

    segment: Segment
    address: Addr
    size: Size
    pieces: tuple[Piece, ...]

    @property
    def missing(self) -> Size:
        """The memory that it takes, in bytes."""
        return Size(sum(piece.size for piece in self.pieces))


def window(segments: Iterable[Segment], need: int, page: int) -> Window | None:
    """Return the window that takes the least memory, the lowest of several."""
    windows = [
        found
        for segment in segments
        if segment.expandable
        for hole in segment.holes
        if (found := _window_at(hole, need, page)) is not None
    ]
    return min(windows, key=lambda w: (w.missing, w.address), default=None)


def _window_at(hole: Block, need: int, page: int) -> Window | None:
    """Return the window that begins before, or with, an unmapped block."""
    block = hole.prev if hole.prev.state is FREE else hole
    address, have = block.address, 0
    pieces: list[Piece] = []
    while have < need:
        if block.state is UNMAPPED:
            size = min(block.size, align_up(need - have, page))
            pieces.append(Piece(block.address, Size(size)))
            have += size
        elif block.state is FREE:
            have += block.size
        else:
            return None
        block = block.next
    return Window(hole.segment, Addr(address), Size(need), tuple(pieces))


Donor = tuple[Segment, Extent]
"""An extent whose memory may serve elsewhere, with the segment that has or had it."""


@dataclass(frozen=True, slots=True)
class Move:
    """An extent of a segment whose memory is mapped elsewhere instead."""

    segment: Segment
    extent: Extent
    to: Addr


@dataclass(frozen=True, slots=True)
class Supply:
    """Where the memory for a window comes from: moved, and created."""

    moves: tuple[Move, ...]
    created: tuple[Piece, ...]

    @property
    def new(self) -> Size:
        """The memory that has to be created, in bytes."""
        return Size(sum(piece.size for piece in self.created))


def supply(pieces: Iterable[Piece], most: int, donors: Iterable[Donor] = ()) -> Supply:
    """Return how to fill a window's pieces: with extents of donors that fit.

    The rest is created, in extents of at most ``most`` bytes.
    """
    moves: list[Move] = []
    left = {piece.address: piece.size for piece in pieces}
    for segment, extent in donors:
        at = next((at for at, size in left.items() if size >= extent.size), None)
        if at is not None:
            moves.append(Move(segment, extent, at))
            rest = Size(left.pop(at) - extent.size)
            if rest:
                left[Addr(at + extent.size)] = rest
        if not left:
            break
    created = [
        Piece(Addr(address + done), Size(min(most, size - done)))
        for address, size in sorted(left.items())
        for done in range(0, size, most)
    ]
    return Supply(tuple(moves), tuple(created))


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


def idle_extents(segment: Segment) -> dict[Extent, Block]:
    """Return the extents that lie in free blocks as a whole, each with its block."""
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
        block.segment.bin.remove(block)
        block.segment.bin.add(block)


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
    segment, bin_ = block.segment, block.segment.bin
    bin_.remove(block)
    before = block
    if block.address < extent.address:
        block = split(blocks, block, extent.address - block.address)
    if extent.end < block.end:
        rest = split(blocks, block, extent.size)
        bin_.add(rest)
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
        bin_.add(before)
    else:
        _reindex(block.prev)
