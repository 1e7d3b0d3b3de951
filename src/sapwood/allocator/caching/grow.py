"""Growing: new memory for a demand, or nothing at all.

A refusal for want of memory is an answer, None; any other error is raised. Either way
everything is then as it was before.
"""

from __future__ import annotations

import time

from sapwood.allocator.caching.bins import Bin
from sapwood.allocator.caching.block import Block, Extent, Segment, size_of
from sapwood.allocator.caching.pages import (
    Donor,
    Window,
    donating,
    mapped,
    new_piece,
    place,
    reclaimable,
    supply,
)
from sapwood.allocator.caching.picture import Action
from sapwood.allocator.caching.sizes import segment_size
from sapwood.allocator.caching.state import Demand, State
from sapwood.driver.release import Release
from sapwood.driver.results import Result
from sapwood.errors import DriverError
from sapwood.units import Size, align_down, align_up

_EXTENT_SHARE = 16384
_SMALL_RESERVE = 1 << 30


def growth_size(state: State, demand: Demand) -> Size:
    """Return the memory that the driver is asked for, where nothing is free."""
    if _expands(state, demand):
        return Size(align_up(demand.need, state.page))
    return segment_size(demand.need, state.settings.large_segment_size, state.page)


def _expands(state: State, demand: Demand, *, last: bool = False) -> bool:
    pool = demand.bin.pool
    plain = pool.source is None and not pool.no_split
    return plain and (last or state.settings.expandable_segments)


def donors(state: State, demand: Demand, *, last: bool) -> list[Bin]:
    """Return whose free pages are to be moved before memory is created; maybe none.

    As the ``last`` attempt those of any segment, else reclaimable ones.
    """
    if not _expands(state, demand, last=last):
        return []
    return donating(state, demand) if last else reclaimable(state, demand)


def grow(
    state: State, demand: Demand, loose: list[Donor], *, last: bool = False
) -> Block | None:
    """Return a new free block for a demand, made of loose and of new memory.

    ``loose`` are extents that are mapped nowhere; those that are used go from it. As
    the ``last`` attempt, the segment is expandable also where they are classic.
    """
    start, block = time.perf_counter(), None
    try:
        if not _expands(state, demand, last=last):
            block = _open(state, demand, [], expandable=False)
        elif (found := place(state, demand)) is not None:
            block = _fill(state, demand, found, loose)
        elif _may_expand(state, demand, loose, last=last):
            block = _open(state, demand, loose, expandable=True)
    except DriverError as error:
        if error.name != Result.OUT_OF_MEMORY.name:
            raise
    finally:
        state.ledger.driver_seconds += time.perf_counter() - start
    state.ledger.happened["misses"] += block is not None
    return block


def _may_expand(
    state: State, demand: Demand, loose: list[Donor], *, last: bool
) -> bool:
    """Whether there is room for a new segment's pages, and no way in an old one.

    What leaves an old one now has left it soon; then there may be.
    """
    if demand.need > state.limit:
        return False
    leaving = state.segments.leaving
    if not last and any(s.expandable and s in leaving for s in demand.bin.segments):
        return False
    piece = new_piece(state, demand)
    return size_of(supply([piece], piece.size, loose).created) <= state.room


def _open(
    state: State, demand: Demand, loose: list[Donor], *, expandable: bool
) -> Block | None:
    """Open a segment, and map what is needed; nothing stays of it where that fails."""
    bin_, source, segments = demand.bin, demand.bin.pool.source, state.segments
    if expandable:
        need = new_piece(state, demand).size
        address, size = segments.reserve(need, _wish(state, bin_))
    else:
        need = size = growth_size(state, demand)
        if size > state.room:
            return None
        if source is None:
            address, _ = segments.reserve(size, size)
        else:
            address = source.allocate(size, bin_.stream)
    segment = Segment(
        address, size, bin_, expandable=expandable, source=source, stack=demand.stack
    )
    segments.enlist(segment)
    window = Window(segment, address, (Extent(address, need),))
    with Release() as undo:
        try:
            return _fill(state, demand, window, loose)
        finally:
            if not segment.extents:
                segments.unlist(segment)
                undo(segments.surrender, segment)


def _wish(state: State, bin_: Bin) -> int:
    """Return how many addresses are reserved for a bin that has no room to grow."""
    wish = state.settings.expandable_segments_reserve
    if wish is None:
        # Small blocks seldom need much; where they do, there is a second segment.
        small = max(state.total // 8, min(state.total, _SMALL_RESERVE))
        return small if bin_.size_class == "small" else state.total
    return int(wish * state.total) if isinstance(wish, float) else wish


def _largest_extent(state: State, segment: Segment) -> Size:
    """Return how large extents are created: a page may move, but handles cost."""
    most = align_down(state.settings.large_segment_size, state.page)
    if segment.expandable:
        most = min(most, align_down(state.segments.held // _EXTENT_SHARE, state.page))
    return Size(max(most, state.page))


def _fill(
    state: State, demand: Demand, found: Window, loose: list[Donor]
) -> Block | None:
    """Map a window with what is loose, and new memory for the rest."""
    segment, segments = found.segment, state.segments
    if segment.source is not None:
        extents = list(found.pieces)
    else:
        plan = supply(found.pieces, _largest_extent(state, segment), loose)
        if size_of(plan.created) > state.room:
            return None
        moves = plan.moves.items()
        moved = [Extent(to, extent.size, extent.handle) for to, (_, extent) in moves]
        extents = segments.map(plan.created, moved)
        segments.away -= size_of(moved)
        for donor in plan.moves.values():
            loose.remove(donor)
    segments.supply(segment, extents)
    mapped(state.blocks, segment, found.pieces)
    state.ledger.change(segment.bin, "reserved_bytes", size_of(found.pieces))
    allocated = len(extents) if segment.expandable else 1
    state.ledger.happened["num_device_alloc"] += allocated
    if not segment.expandable:
        state.count_segment(segment, 1)
    action: Action = "segment_map" if segment.expandable else "segment_alloc"
    for piece in found.pieces:
        state.note(action, piece.address, piece.size, segment.bin, demand.stack)
    return state.blocks[found.address]
