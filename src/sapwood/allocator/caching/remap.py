"""Which free pages may serve elsewhere: mapped anew, side by side.

*Reclaimed* are those of streams whose work is over, before memory is created that
would exceed what was ever needed at once. *Remapped*, as the last attempt, are free
pages of all segments that the request may have memory of, after their streams were
waited for. Pages of a capture's pool in use stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sapwood.allocator.caching import expand
from sapwood.allocator.caching.bins import Bin
from sapwood.allocator.caching.block import FREE, Extent, Segment, size_of
from sapwood.allocator.caching.expand import Donor, Window, supply, window
from sapwood.allocator.caching.state import Demand, State
from sapwood.units import Addr, Size, align_up

_PEAK_SHARE = 64
_MOVED_SHARE = 64


def place(state: State, demand: Demand) -> Window | None:
    """Return where the demand would be mapped, in a segment that is there."""
    leaving = state.segments.leaving
    still = (segment for segment in demand.bin.segments if segment not in leaving)
    return window(still, demand.need, state.page)


def new_piece(state: State, demand: Demand) -> Extent:
    """Return what would be mapped in a new segment, at addresses not known yet."""
    return Extent(Addr(0), Size(align_up(demand.need, state.page)))


def reclaimable(state: State, demand: Demand) -> list[Bin]:
    """Return the demand's pool's bins that pages may be moved from now, once over.

    None while what is held stays within a share of the most that was ever allocated,
    and of all that was moved: a program that repeats itself comes to rest.
    """
    bins = [bin_ for bin_ in demand.bin.pool.bins() if _may_go(bin_)]
    peak = state.ledger.peak_allocated(demand.need)
    slack = max(peak // _PEAK_SHARE, state.page * (len(bins) + 1))
    slack += state.segments.moved // _MOVED_SHARE
    found = place(state, demand)
    missing = size_of(found.pieces if found else [new_piece(state, demand)])
    if state.segments.held + missing <= peak + slack or state.capturing():
        return []
    return bins


def chosen(
    state: State, demand: Demand, bins: Iterable[Bin], *, classic: bool
) -> dict[Segment, list[Extent]]:
    """Return the extents to move for a demand; none where it would not fit anyhow.

    None while anything is captured, either. Segments that are not expandable give
    pages only where ``classic``.
    """
    if demand.need > state.limit or state.capturing():
        return {}
    found = place(state, demand)
    piece = new_piece(state, demand)
    # Free memory of the window counts towards the request.
    start = found.address if found else 0
    window = range(start, start + demand.need if found else 0)
    spare = _spare_extents(state, bins, window, classic=classic)
    plan = supply(found.pieces if found else [piece], piece.size, spare)
    moved: dict[Segment, list[Extent]] = {}
    if size_of(plan.created) <= state.room:
        for segment, extent in plan.moves.values():
            moved.setdefault(segment, []).append(extent)
    return moved


def donating(state: State, demand: Demand) -> list[Bin]:
    """Return the bins that memory may be taken from as the last attempt.

    Those of the demand's pool, of pools that help out, and of nobody's.
    """
    return [
        bin_
        for pool in state.pools.all.values()
        if pool is demand.bin.pool or pool.freeable or pool.use_on_oom
        for bin_ in pool.bins()
        if _may_go(bin_)
    ]


def _may_go(bin_: Bin) -> bool:
    pool = bin_.pool
    in_place = pool.capture and pool.use_count > 0
    return not bin_.is_empty() and pool.source is None and not in_place


def _spare_extents(
    state: State, bins: Iterable[Bin], window: range, *, classic: bool
) -> Iterator[Donor]:
    """Yield idle extents outside of a window, those of the largest blocks first."""
    free = [b for bin_ in bins for b in bin_.large_blocks(state.page)]
    free.sort(key=lambda block: (-block.size, block.address))
    for block in free:
        if classic or block.segment.expandable:
            for extent in expand.extents_in(block):
                if extent.end <= window.start or window.stop <= extent.address:
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
