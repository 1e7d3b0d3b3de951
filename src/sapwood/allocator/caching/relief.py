"""What could be given back: caches, idle segments, whole free extents.

Decided here, by values; `leaving` does it. None of this is for where anything is
captured: nobody may be waited for then, so nothing that is mapped can go.
"""

from __future__ import annotations

from collections.abc import Iterable

from sapwood.allocator.caching import expand
from sapwood.allocator.caching.block import FREE, Extent, Segment
from sapwood.allocator.caching.leaving import Chosen
from sapwood.allocator.caching.silo import Silo
from sapwood.allocator.caching.state import State

__all__ = ["cached", "everything", "freeable", "idle", "trimmed"]


def freeable(state: State) -> list[Silo]:
    """Return the silos whose free memory may go at any time."""
    pools = state.pools.all.values()
    return [silo for pool in pools if pool.freeable for silo in pool.silos()]


def cached(state: State, silos: Iterable[Silo]) -> dict[Segment, list[Extent]]:
    """Return what silos could give back: segments, with extents of each.

    A segment that is not expandable goes as a whole, or not at all.
    """
    found: dict[Segment, list[Extent]] = {}
    for segment in (segment for silo in silos for segment in silo.segments):
        if segment.expandable:
            extents = expand.idle_extents(segment)
            if extents:
                found[segment] = extents
        elif _is_idle(state, segment):
            found[segment] = list(segment.extents)
    return found


def _is_idle(state: State, segment: Segment) -> bool:
    block = segment.whole()
    free = block is not None and block.state is FREE
    return free and segment not in state.segments.leaving


def everything(state: State) -> Chosen:
    """Return all that is free of a closed allocator."""
    return cached(state, state.pools.silos()) if state.closed else {}


def trimmed(state: State, keep: int) -> dict[Segment, list[Extent]]:
    """Return what goes of freeable pools until at most ``keep`` bytes stay cached."""
    caches = cached(state, freeable(state))
    have: int = sum(extent.size for extents in caches.values() for extent in extents)
    chosen: dict[Segment, list[Extent]] = {}
    for segment, extents in caches.items():
        if not segment.expandable:
            if have - segment.size >= keep:
                chosen[segment] = extents
                have -= segment.size
            continue
        # From the end: what is left stays together.
        for extent in reversed(extents):
            if have - extent.size >= keep:
                chosen.setdefault(segment, []).append(extent)
                have -= extent.size
    return chosen


def idle(state: State) -> dict[Segment, list[Extent]]:
    """Return classic segments of large blocks to give back, the longest idle first.

    Until what is held falls to the threshold of the limit.
    """
    threshold = state.settings.garbage_collection_threshold
    excess = state.segments.held - int(threshold * state.limit)
    ages = {
        segment: silo.searches - segment.idle_since
        for silo in state.pools.default.large.values()
        for segment in silo.segments
        if not segment.expandable and _is_idle(state, segment)
    }
    chosen: dict[Segment, list[Extent]] = {}
    while excess > 0 and ages:
        average = sum(ages.values()) / len(ages)
        for segment in [s for s, age in ages.items() if age >= average]:
            if excess <= 0:
                break
            chosen[segment] = list(segment.extents)
            excess -= segment.size
            del ages[segment]
    return chosen
