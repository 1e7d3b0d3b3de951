"""Growing: new memory for a demand, or nothing at all.

Performs what `growth` decides. A refusal for want of memory is an answer, None; any
other error is raised. Either way everything is then as it was before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from sapwood.allocator.caching import expand
from sapwood.allocator.caching.bins import Bin
from sapwood.allocator.caching.block import Block, Extent, Segment
from sapwood.allocator.caching.expand import Donor, Piece, Window, supply, window
from sapwood.allocator.caching.remap import donating, place, reclaimable
from sapwood.allocator.caching.sizes import segment_size
from sapwood.allocator.caching.state import Demand, State
from sapwood.driver.release import Release
from sapwood.driver.results import Result
from sapwood.errors import DriverError
from sapwood.units import Addr, Size, align_down, align_up

_EXTENT_SHARE = 16384
_SMALL_RESERVE = 1 << 30


@contextmanager
def _timed(state: State) -> Iterator[None]:
    """Count the time as the driver's."""
    start = time.perf_counter()
    try:
        yield
    finally:
        state.ledger.driver_seconds += time.perf_counter() - start


def growth_size(state: State, demand: Demand) -> Size:
    """Return the memory that the driver is asked for, where nothing is free."""
    if _expands(state, demand):
        return Size(align_up(demand.need, state.page))
    large = state.settings.large_segment_size
    return segment_size(demand.need, large, state.page)


def _expands(state: State, demand: Demand) -> bool:
    pool = demand.bin.pool
    plain = pool.source is None and not pool.no_split
    return plain and state.settings.expandable_segments


def donors(state: State, demand: Demand, *, last: bool) -> list[Bin]:
    """Return whose free pages are to be moved before memory is created; maybe none.

    As the ``last`` attempt those of any segment, else reclaimable ones.
    """
    pool = demand.bin.pool
    if last and pool.source is None and not pool.no_split:
        return donating(state, demand)
    return reclaimable(state, demand) if _expands(state, demand) else []


def grow(
    state: State, demand: Demand, loose: list[Donor], *, last: bool = False
) -> Block | None:
    """Return a new free block for a demand, made of loose and of new memory.

    ``loose`` are extents that are mapped nowhere; those that are used go from it. As
    the ``last`` attempt, the segment is expandable also where they are classic.
    """
    pool = demand.bin.pool
    attempt: Callable[[], Block | None]
    if pool.source is not None:
        attempt = partial(_fetch, state, demand)
    elif _expands(state, demand) or (last and not pool.no_split):
        attempt = partial(_expand, state, demand, loose, last=last)
    else:
        attempt = partial(_open_classic, state, demand)
    with _timed(state):
        block = _granted(attempt)
    state.ledger.misses += block is not None
    return block


def _granted(attempt: Callable[[], Block | None]) -> Block | None:
    try:
        return attempt()
    except DriverError as error:
        if error.name != Result.OUT_OF_MEMORY.name:
            raise
        return None


# Classic segments, and those of a pool's own source.


def _fetch(state: State, demand: Demand) -> Block | None:
    source, size = demand.bin.pool.source, growth_size(state, demand)
    if source is None or size > state.room:
        return None
    segment = state.segments.fetch(demand.bin, size, source, demand.stack)
    expand.mapped(state.blocks, segment, [Piece(segment.address, size)])
    return _commit_classic(state, demand, segment)


def _open_classic(state: State, demand: Demand) -> Block | None:
    size = growth_size(state, demand)
    if size > state.room:
        return None
    segment = state.segments.reserve_exactly(demand.bin, size, demand.stack)
    whole = Window(segment, segment.address, size, (Piece(segment.address, size),))
    largest = Size(align_down(state.settings.large_segment_size, state.page))
    created: list[Extent] = []
    with Release() as undo:
        try:
            created = _created(
                state, supply(whole.pieces, max(largest, state.page)).created
            )
            state.segments.map(created)
        except BaseException:
            undo(state.segments.discard, created)
            state.segments.unlist(segment)
            undo(state.segments.surrender, segment)
            raise
    state.segments.supply(segment, created)
    expand.mapped(state.blocks, segment, whole.pieces)
    return _commit_classic(state, demand, segment)


def _commit_classic(state: State, demand: Demand, segment: Segment) -> Block:
    state.note_opened(segment)
    state.count_memory(segment.bin, segment.size, 1)
    state.note(
        "segment_alloc", segment.address, segment.size, segment.bin, demand.stack
    )
    return segment.guard.next


# Expandable segments.


def _expand(
    state: State, demand: Demand, loose: list[Donor], *, last: bool
) -> Block | None:
    found = place(state, demand)
    if found is not None:
        return _fill(state, demand, found, loose)
    if not _may_open(state, demand, loose, last=last):
        return None
    opened = _open_expandable(state, demand)
    with Release() as undo:
        try:
            found = window([opened], demand.need, state.page)
            return None if found is None else _fill(state, demand, found, loose)
        finally:
            if not opened.extents:
                state.segments.unlist(opened)
                state.note_closed(opened)
                undo(state.segments.surrender, opened)


def _may_open(state: State, demand: Demand, loose: list[Donor], *, last: bool) -> bool:
    """Whether there is room for a new segment's pages, and no way in an old one.

    What leaves an old one now has left it soon; then there may be.
    """
    if demand.need > state.limit:
        return False
    leaving = state.segments.leaving
    if not last and any(s.expandable and s in leaving for s in demand.bin.segments):
        return False
    new = Piece(Addr(0), Size(align_up(demand.need, state.page)))
    return supply([new], new.size, loose).new <= state.room


def _open_expandable(state: State, demand: Demand) -> Segment:
    """Reserve addresses for a bin that has no room to grow; maps nothing."""
    wish = state.settings.expandable_segments_reserve
    if wish is None:
        # Small blocks seldom need much; where they do, there is a second segment.
        small = max(state.total // 8, min(state.total, _SMALL_RESERVE))
        wish = Size(small if demand.bin.size_class == "small" else state.total)
    elif isinstance(wish, float):
        wish = Size(int(wish * state.total))
    segment = state.segments.reserve(demand.bin, wish, demand.need, demand.stack)
    state.note_opened(segment)
    return segment


def _largest_extent(state: State) -> Size:
    """Return how large extents are created: a page may move, but handles cost."""
    most = align_down(state.settings.large_segment_size, state.page)
    wish = align_down(state.segments.held // _EXTENT_SHARE, state.page)
    return Size(max(min(wish, most), state.page))


def _fill(
    state: State, demand: Demand, found: Window, loose: list[Donor]
) -> Block | None:
    """Map a window with what is loose, and new memory for the rest."""
    plan = supply(found.pieces, _largest_extent(state), loose)
    if plan.new > state.room:
        return None
    created = _created(state, plan.created)
    moved = [Extent(m.to, m.extent.size, m.extent.handle) for m in plan.moves]
    with Release() as undo:
        try:
            state.segments.map([*created, *moved])
        except BaseException:
            undo(state.segments.discard, created)
            raise
    _commit_window(state, demand, found, [*created, *moved])
    state.segments.away -= sum(extent.size for extent in moved)
    for move in plan.moves:
        loose.remove((move.segment, move.extent))
    return state.blocks[found.address]


def _commit_window(
    state: State, demand: Demand, found: Window, extents: Sequence[Extent]
) -> None:
    bin_ = found.segment.bin
    state.segments.supply(found.segment, extents)
    expand.mapped(state.blocks, found.segment, found.pieces)
    state.count_memory(bin_, found.missing, len(extents))
    for piece in found.pieces:
        state.note("segment_map", piece.address, piece.size, bin_, demand.stack)


# Physical memory.


def _created(state: State, pieces: Sequence[Piece]) -> list[Extent]:
    """Create extents for pieces, mapped nowhere yet; raises having created none."""
    handles = state.segments.create([piece.size for piece in pieces])
    return [
        Extent(piece.address, piece.size, handle)
        for piece, handle in zip(pieces, handles, strict=True)
    ]
