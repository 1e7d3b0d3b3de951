"""Growing: new memory for a demand, or nothing at all.

Performs what `growth` decides. A refusal for want of memory is an answer, None; any
other error is raised. Either way everything is then as it was before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from sapwood.driver.release import Release
from sapwood.driver.results import Result
from sapwood.errors import DriverError
from sapwood.memory.caching import expand
from sapwood.memory.caching.block import Block, Extent, Segment
from sapwood.memory.caching.growth import Piece, Window, supply, window
from sapwood.memory.caching.sizes import segment_size
from sapwood.memory.caching.state import Demand, State
from sapwood.memory.caching.stitch import Donors, harvest, open_to_moves, stitch
from sapwood.units import Size, align_down, align_up

__all__ = ["grow", "growth_size", "timed"]

_EXTENT_SHARE = 16384
_SMALL_RESERVE = 1 << 30

Choice = Callable[[State, Demand, Window], Donors]


@contextmanager
def timed(state: State) -> Iterator[None]:
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
    pool = demand.silo.pool
    plain = pool.source is None and not pool.no_split
    return plain and state.settings.expandable_segments


def grow(state: State, demand: Demand, *, last: bool = False) -> Block | None:
    """Return a new free block for a demand, made of new memory.

    Before memory is created that would not have been needed, free pages of streams
    whose work is over are used. As the ``last`` attempt, free pages of any segment
    are, and where segments are classic, too.
    """
    attempt: Callable[[], Block | None]
    if demand.silo.pool.source is not None:
        attempt = partial(_fetch, state, demand)
    elif last and not demand.silo.pool.no_split:
        attempt = partial(_expand, state, demand, stitch)
    elif _expands(state, demand):
        attempt = partial(_expand, state, demand, harvest)
    else:
        attempt = partial(_open_classic, state, demand)
    with timed(state):
        return _granted(attempt)


def _granted(attempt: Callable[[], Block | None]) -> Block | None:
    try:
        return attempt()
    except DriverError as error:
        if error.name != Result.OUT_OF_MEMORY.name:
            raise
        return None


# Classic segments, and those of a pool's own source.


def _fetch(state: State, demand: Demand) -> Block | None:
    source, size = demand.silo.pool.source, growth_size(state, demand)
    if source is None or size > state.room:
        return None
    segment = state.segments.fetch(demand.silo, size, source, demand.stack)
    expand.mapped(state.blocks, segment, [Piece(segment.address, size)])
    return _commit_classic(state, demand, segment)


def _open_classic(state: State, demand: Demand) -> Block | None:
    size = growth_size(state, demand)
    if size > state.room:
        return None
    segment = state.segments.reserve_exactly(demand.silo, size, demand.stack)
    whole = Window(segment, segment.address, size, (Piece(segment.address, size),))
    largest = Size(align_down(state.settings.large_segment_size, state.page))
    created: list[Extent] = []
    with Release() as undo:
        try:
            created = _created(state, supply(whole, max(largest, state.page)).created)
            state.segments.map(created)
        except BaseException:
            undo(state.segments.discard, created)
            undo(state.segments.close, segment)
            raise
    state.segments.supply(segment, created)
    expand.mapped(state.blocks, segment, whole.pieces)
    return _commit_classic(state, demand, segment)


def _commit_classic(state: State, demand: Demand, segment: Segment) -> Block:
    state.note_opened(segment)
    state.count_memory(segment.silo, segment.size, 1)
    state.note(
        "segment_alloc", segment.address, segment.size, segment.silo, demand.stack
    )
    return segment.guard.next


# Expandable segments.


def _expand(state: State, demand: Demand, choose: Choice) -> Block | None:
    found = window(demand.silo.segments, demand.need, state.page)
    if found is not None:
        return _fill(state, demand, found, choose(state, demand, found))
    if demand.need > state.limit:
        return None
    opened = _open_expandable(state, demand)
    block = None
    with Release() as undo:
        try:
            found = window([opened], demand.need, state.page)
            if found is not None:
                block = _fill(state, demand, found, choose(state, demand, found))
        finally:
            undo(_close_if_empty, state, opened)
    return block


def _open_expandable(state: State, demand: Demand) -> Segment:
    """Reserve addresses for a silo that has no room to grow; maps nothing."""
    wish = state.settings.expandable_segments_reserve
    if wish is None:
        # Small blocks seldom need much; where they do, there is a second segment.
        small = max(state.total // 8, min(state.total, _SMALL_RESERVE))
        wish = Size(small if demand.silo.size_class == "small" else state.total)
    elif isinstance(wish, float):
        wish = Size(int(wish * state.total))
    segment = state.segments.reserve(demand.silo, wish, demand.need, demand.stack)
    state.note_opened(segment)
    return segment


def _largest_extent(state: State) -> Size:
    """Return how large extents are created: a page may move, but handles cost."""
    most = align_down(state.settings.large_segment_size, state.page)
    wish = align_down(state.segments.held // _EXTENT_SHARE, state.page)
    return Size(max(min(wish, most), state.page))


def _fill(state: State, demand: Demand, found: Window, donors: Donors) -> Block | None:
    """Map a window with what donors have, and new memory for the rest."""
    plan = supply(found, _largest_extent(state), donors)
    if plan.new > state.room:
        return None
    created = _created(state, plan.created)
    moved = [Extent(m.to, m.extent.size, m.extent.handle) for m in plan.moves]
    old: dict[Segment, dict[Extent, Block]] = {}
    for move in plan.moves:
        old.setdefault(move.block.segment, {})[move.extent] = move.block
    with Release() as undo:
        try:
            # Over already, or waited for without the lock: but never unmapped early.
            for stream in {donor.silo.stream: None for donor in old}:
                state.finish(stream)
            state.segments.map([*created, *moved])
        except BaseException:
            undo(state.segments.discard, created)
            raise
    _commit_window(state, demand, found, [*created, *moved])
    try:
        _give_up(state, old)
    except DriverError:
        # Done all the same; but a request that raises keeps no memory.
        _retract(state, found, [*created, *moved])
        raise
    return state.blocks[found.address]


def _commit_window(
    state: State, demand: Demand, found: Window, extents: Sequence[Extent]
) -> None:
    silo = found.segment.silo
    state.segments.supply(found.segment, extents)
    expand.mapped(state.blocks, found.segment, found.pieces)
    state.count_memory(silo, found.missing, len(extents))
    for piece in found.pieces:
        state.note("segment_map", piece.address, piece.size, silo, demand.stack)


def _give_up(state: State, old: Mapping[Segment, Mapping[Extent, Block]]) -> None:
    """Let segments go on without extents that are mapped elsewhere now."""
    with Release() as release:
        for donor, extents in old.items():
            open_to_moves(state, donor)
            expand.unmapped(state.blocks, extents)
            size = sum(extent.size for extent in extents)
            state.segments.moved += size
            state.count_memory(donor.silo, -size, len(extents))
            for extent in extents:
                state.note("segment_unmap", extent.address, extent.size, donor.silo)
            release(state.segments.abandon, donor, list(extents))
            release(_close_if_empty, state, donor)


def _retract(state: State, found: Window, extents: Sequence[Extent]) -> None:
    """Give back what was mapped for a window; errors of that are of the same kind."""
    block, segment = state.blocks[found.address], found.segment
    expand.unmapped(state.blocks, dict.fromkeys(extents, block))
    state.count_memory(segment.silo, -found.missing, len(extents))
    for extent in extents:
        state.note("segment_unmap", extent.address, extent.size, segment.silo)
    with Release() as release:
        release(state.segments.withdraw, segment, extents)
        release(_close_if_empty, state, segment)


def _close_if_empty(state: State, segment: Segment) -> None:
    if not segment.extents and segment in segment.silo.segments:
        with Release() as release:
            release(state.segments.close, segment)
            state.note_closed(segment)


# Physical memory.


def _created(state: State, pieces: Sequence[Piece]) -> list[Extent]:
    """Create extents for pieces, mapped nowhere yet; raises having created none."""
    handles = state.segments.create([piece.size for piece in pieces])
    return [
        Extent(piece.address, piece.size, handle)
        for piece, handle in zip(pieces, handles, strict=True)
    ]
