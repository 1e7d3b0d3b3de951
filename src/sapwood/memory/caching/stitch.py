"""Which free pages may serve elsewhere: mapped anew, side by side.

*Harvested* are those of streams whose work is over, before memory is created that
would exceed what was ever needed at once. *Stitched*, as the last attempt, are free
pages of all segments that the request may have memory of, after their streams were
waited for. Pages of a capture's pool
in use stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sapwood.memory.caching import expand
from sapwood.memory.caching.block import FREE, Block, Extent, Segment
from sapwood.memory.caching.growth import Window
from sapwood.memory.caching.silo import Silo
from sapwood.memory.caching.state import Demand, State

__all__ = ["Donors", "donating", "harvest", "open_to_moves", "spare_extents", "stitch"]

_PEAK_SHARE = 64
_MOVED_SHARE = 64

Donors = Iterator[tuple[Block, Extent]]
"""Idle extents, each with the free block that it lies in."""


def harvest(state: State, demand: Demand, found: Window) -> Donors:
    """Return idle extents of the demand's pool that may be moved now.

    None while what is held stays within a share of the most that was ever allocated,
    and of all that was moved: a program that repeats itself comes to rest.
    """
    silos = [silo for silo in demand.silo.pool.silos() if _may_go(silo)]
    peak = state.ledger.peak_allocated(demand.need)
    slack = max(peak // _PEAK_SHARE, state.page * (len(silos) + 1))
    slack += state.segments.moved // _MOVED_SHARE
    if state.segments.held + found.missing <= peak + slack or state.capturing():
        return iter(())
    over = {s: state.driver.query_stream(s) for s in {silo.stream for silo in silos}}
    idle = [silo for silo in silos if over[silo.stream]]
    return spare_extents(state, idle, found, classic=False)


def stitch(state: State, demand: Demand, found: Window) -> Donors:
    """Return all extents that may be moved once their streams were waited for."""
    return spare_extents(state, donating(state, demand), found, classic=True)


def donating(state: State, demand: Demand) -> list[Silo]:
    """Return the silos that memory may be taken from as the last attempt.

    Those of the demand's pool, of pools that help out, and of nobody's.
    """
    return [
        silo
        for pool in state.pools.all.values()
        if pool is demand.silo.pool or pool.freeable or pool.use_on_oom
        for silo in pool.silos()
        if _may_go(silo)
    ]


def _may_go(silo: Silo) -> bool:
    pool = silo.pool
    in_place = pool.capture and pool.use_count > 0
    return bool(silo.keys) and pool.source is None and not in_place


def spare_extents(
    state: State, silos: Iterable[Silo], found: Window, *, classic: bool
) -> Donors:
    """Yield idle extents outside of a window, those of the largest blocks first."""
    free = [b for silo in silos for b in silo.large_blocks(state.blocks, state.page)]
    free.sort(key=lambda block: (-block.size, block.address))
    for block in free:
        if classic or block.segment.expandable:
            for extent in expand.extents_in(block):
                if block.segment is not found.segment or not _is_in(extent, found):
                    yield block, extent


def _is_in(extent: Extent, found: Window) -> bool:
    # Free memory of the window counts towards the request.
    end = found.address + found.size
    return extent.address < end and found.address < extent.end


def open_to_moves(state: State, segment: Segment) -> None:
    """Let a classic segment have unmapped blocks, like an expandable one."""
    if segment.expandable:
        return
    state.note_closed(segment)
    for block in segment.blocks():
        if block.state is FREE:
            state.count_split(block, -1)
    segment.expandable = True
    state.refresh(segment.silo)
