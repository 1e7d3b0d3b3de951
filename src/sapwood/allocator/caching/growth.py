"""How a silo grows: decided here by values, performed elsewhere.

An expandable segment is mapped where that takes the least memory: what is free
already, next to unmapped addresses, counts towards the request.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from sapwood.allocator.caching.block import FREE, UNMAPPED, Block, Extent, Segment
from sapwood.allocator.caching.settings import Settings
from sapwood.units import Addr, Size, align_up

__all__ = [
    "Attempt",
    "Donor",
    "Move",
    "Piece",
    "Supply",
    "Window",
    "attempts",
    "supply",
    "window",
]


class Attempt(enum.Enum):
    """One way to serve a request, or to make room before it is tried again."""

    FIT = "a free block of the silo"
    BORROW = "blocks of other streams, after what they wait for"
    COLLECT = "growing, after idle segments went back"
    GROW = "growing"
    RECLAIM = "what those who watch the pressure give back"
    SPARE = "pools that help out"
    OWN = "growing, after the silo's own cache went back"
    SETTLE = "blocks that events were awaited for"
    OTHERS = "growing, after all caches went back"
    STITCH = "free pages of any segment, mapped anew"


def attempts(
    settings: Settings, *, private: bool, capturing: bool, limited: bool
) -> tuple[Attempt, ...]:
    """Return what to try for a request, in order, until it is served.

    While anything is captured nobody may be waited for, so nothing that is mapped can
    go. ``limited``: a memory fraction below 1 is set.
    """
    order = [Attempt.FIT]
    if settings.cross_stream_reuse and not capturing:
        order.append(Attempt.BORROW)
    if settings.garbage_collection_threshold and limited and not capturing:
        order.append(Attempt.COLLECT)
    order += [Attempt.GROW, Attempt.RECLAIM]
    if not private:
        order.append(Attempt.SPARE)
    if not capturing:
        order += [Attempt.OWN, Attempt.SETTLE, Attempt.OTHERS, Attempt.STITCH]
    return tuple(order)


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
