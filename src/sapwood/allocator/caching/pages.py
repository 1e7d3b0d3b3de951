"""Pages that come, go and move: which ones serve a demand, and blocks afterwards.

A demand grows by new memory, or by nothing at all: a refusal for want of memory is an
answer, None; any other error is raised. Either way everything is then as it was before.

*Reclaimed* are free pages of streams whose work is over, before memory is created that
would exceed what was ever needed at once. *Remapped*, as the last attempt, are free
pages of all segments that the request may have memory of, after their streams were
waited for. Pages of a capture's pool in use stay where they are.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from sapwood.allocator.caching.blocks import (
    FREE,
    UNMAPPED,
    Bin,
    Block,
    Blocks,
    Extent,
    Segment,
    merge_next,
    size_of,
    split,
)
from sapwood.allocator.caching.picture import Action
from sapwood.allocator.caching.sizes import segment_size
from sapwood.allocator.caching.state import Demand, State
from sapwood.driver.release import Release
from sapwood.driver.results import Result
from sapwood.errors import DriverError
from sapwood.units import Addr, Size, align_down, align_up

_start: Final = attrgetter("address")
_end: Final = attrgetter("end")

_PEAK_SHARE = 64
_MOVED_SHARE = 64
_EXTENT_SHARE = 16384
_SMALL_RESERVE = 1 << 30


class Window(NamedTuple):
    """Where a block would fit in a segment, if some pieces of it were mapped.

    Each piece begins an unmapped block.
    """

    segment: Segment
    address: Addr
    pieces: tuple[Extent, ...]


def _place(state: State, demand: Demand) -> Window | None:
    """Return where the demand would be mapped, in a segment that is there.

    That is the window that takes the least memory, the lowest of several.
    """
    windows = [
        found
        for segment in demand.bin.segments
        if segment.expandable and segment not in state.segments.leaving
        for hole in segment.holes
        if (found := _window_at(hole, demand.need, state.page)) is not None
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


def _supply(
    pieces: Iterable[Extent], most: int, donors: Iterable[Donor] = ()
) -> Supply:
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


def _new_piece(state: State, demand: Demand) -> Extent:
    """Return what would be mapped in a new segment, at addresses not known yet."""
    return Extent(Addr(0), Size(align_up(demand.need, state.page)))


def _reclaimable(state: State, demand: Demand) -> list[Bin]:
    """Return the demand's pool's bins that pages may be moved from now, once over.

    None while what is held stays within a share of the most that was ever allocated,
    and of all that was moved: a program that repeats itself comes to rest.
    """
    bins = [bin_ for bin_ in demand.bin.pool.bins() if _may_go(bin_)]
    peak = state.ledger.peak_allocated(demand.need)
    slack = max(peak // _PEAK_SHARE, state.page * (len(bins) + 1))
    slack += state.segments.moved // _MOVED_SHARE
    found = _place(state, demand)
    missing = size_of(found.pieces if found else [_new_piece(state, demand)])
    if state.segments.held + missing <= peak + slack or state.capturing():
        return []
    return bins


def moves(
    state: State, demand: Demand, bins: Iterable[Bin], *, classic: bool
) -> dict[Segment, list[Extent]]:
    """Return the extents to move for a demand; none where it would not fit anyhow.

    None while anything is captured, either. Segments that are not expandable give
    pages only where ``classic``.
    """
    if demand.need > state.limit or state.capturing():
        return {}
    found = _place(state, demand)
    piece = _new_piece(state, demand)
    # Free memory of the window counts towards the request.
    start = found.address if found else 0
    within = range(start, start + demand.need if found else 0)
    spare = _spare_extents(state, bins, within, classic=classic)
    plan = _supply(found.pieces if found else [piece], piece.size, spare)
    moved: dict[Segment, list[Extent]] = {}
    if size_of(plan.created) <= state.room:
        for segment, extent in plan.moves.values():
            moved.setdefault(segment, []).append(extent)
    return moved


def _may_go(bin_: Bin) -> bool:
    pool = bin_.pool
    in_place = pool.capture and pool.use_count > 0
    return not bin_.is_empty() and pool.source is None and not in_place


def _spare_extents(
    state: State, bins: Iterable[Bin], within: range, *, classic: bool
) -> Iterator[Donor]:
    """Yield idle extents outside of a window, those of the largest blocks first."""
    free = [b for bin_ in bins for b in bin_.fits(state.page)]
    free.sort(key=lambda block: (-block.size, block.address))
    for block in free:
        if classic or block.segment.expandable:
            for extent in extents_in(block):
                if extent.end <= within.start or within.stop <= extent.address:
                    yield block.segment, extent


def open_to_moves(state: State, segments: Iterable[Segment]) -> None:
    """Let classic segments have unmapped blocks, like expandable ones."""
    for segment in segments:
        state.count_segment(segment, -1)
        _count_splits(state, segment, -1)
        segment.expandable = True
        state.refresh(segment.bin)


def close_to_moves(state: State, segments: Iterable[Segment]) -> None:
    """Let segments be classic again that nothing was moved out of."""
    for segment in segments:
        if not segment.holes:
            segment.expandable = False
            _count_splits(state, segment, 1)
            state.count_segment(segment, 1)


def _count_splits(state: State, segment: Segment, sign: int) -> None:
    for block in segment.blocks():
        if block.state is FREE:
            state.count_split(block, sign)


# Growing.


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

    As the ``last`` attempt those of any segment in the demand's pool, pools that help
    out, and nobody's; else reclaimable ones.
    """
    if not _expands(state, demand, last=last):
        return []
    if not last:
        return _reclaimable(state, demand)
    return [
        bin_
        for pool in state.pools.all.values()
        if pool is demand.bin.pool or pool.freeable or pool.use_on_oom
        for bin_ in pool.bins()
        if _may_go(bin_)
    ]


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
        elif (found := _place(state, demand)) is not None:
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
    piece = _new_piece(state, demand)
    return size_of(_supply([piece], piece.size, loose).created) <= state.room


def _open(
    state: State, demand: Demand, loose: list[Donor], *, expandable: bool
) -> Block | None:
    """Open a segment, and map what is needed; nothing stays of it where that fails."""
    bin_, source, segments = demand.bin, demand.bin.pool.source, state.segments
    if expandable:
        need = _new_piece(state, demand).size
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
        plan = _supply(found.pieces, _largest_extent(state, segment), loose)
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


# Blocks after their memory came or went; nothing here can fail.


def mapped(blocks: Blocks, segment: Segment, extents: Iterable[Extent]) -> None:
    """Let extents of unmapped blocks be free: they were mapped."""
    for extent in extents:
        at, hole = extent.address, blocks.get(extent.address)
        if hole is None:
            before = next(h for h in segment.holes if h.address < at < h.end)
            hole = split(blocks, before, at - before.address)
            segment.holes[hole] = None
            _reindex(before.prev)
        del segment.holes[hole]
        if extent.size < hole.size:
            segment.holes[split(blocks, hole, extent.size)] = None
        segment.bin.join(hole, blocks, [])


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
