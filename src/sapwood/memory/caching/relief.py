"""Giving memory back: caches, idle segments, whole free extents.

What is unmapped may still be in use by work that its stream has been given, so the
stream is waited for first. Nothing here runs while anything is captured.
"""

from __future__ import annotations

from collections.abc import Iterable

from sapwood.driver.release import Release
from sapwood.memory.caching import expand
from sapwood.memory.caching.block import FREE, Block, Extent, Segment
from sapwood.memory.caching.grow import timed
from sapwood.memory.caching.pools import Pool
from sapwood.memory.caching.silo import Silo
from sapwood.memory.caching.state import State
from sapwood.memory.caching.waits import Waits
from sapwood.units import Size

__all__ = [
    "cached",
    "collect",
    "freeable",
    "give_back",
    "give_back_rest",
    "release_silos",
    "settle",
    "trim",
    "waits_for_cache",
    "waits_for_pending",
]


def settle(state: State, pool: Pool | None = None) -> None:
    """Wait for what freed blocks, of one pool or all, wait for; they are free then."""
    if not state.pending:
        return
    state.pending.mark_all()
    state.ledger.synchronizations += 1
    for block in state.pending.synchronize(pool):
        state.retire(block)


def freeable(state: State) -> list[Silo]:
    """Return the silos whose free memory may go at any time."""
    pools = state.pools.all.values()
    return [silo for pool in pools if pool.freeable for silo in pool.silos()]


def waits_for_pending(state: State, pool: Pool | None = None) -> Waits:
    """Return what pending blocks wait for: of a pool, or all."""
    return Waits(events=tuple(state.pending.events(pool)))


def waits_for_cache(state: State, silos: Iterable[Silo]) -> Waits:
    """Return what to wait for before the caches of silos go back."""
    streams = {silo.stream: None for silo in silos if cached(silo)}
    busy = [stream for stream in streams if not state.driver.query_stream(stream)]
    return Waits(lent=tuple(state.pending.lend(busy)))


def cached(silo: Silo) -> list[tuple[Segment, list[Extent]]]:
    """Return what a silo could give back: segments, with extents of each.

    A segment that is not expandable goes as a whole, or not at all.
    """
    found: list[tuple[Segment, list[Extent]]] = []
    for segment in silo.segments:
        block = segment.whole()
        if segment.expandable:
            idle = expand.idle_extents(segment)
            if idle:
                found.append((segment, idle))
        elif block is not None and block.state is FREE:
            found.append((segment, list(segment.extents)))
    return found


def _blocks_of(segment: Segment) -> dict[Extent, Block]:
    """Return the idle extents with the blocks that they lie in."""
    free = (block for block in segment.blocks() if block.state is FREE)
    return {extent: block for block in free for extent in expand.extents_in(block)}


def give_back(state: State, segment: Segment, extents: list[Extent]) -> Size:
    """Unmap extents that are free as a whole; return how many bytes.

    A segment with nothing left in it goes, too. All is done when an error is raised.
    """
    size, silo = Size(sum(extent.size for extent in extents)), segment.silo
    with timed(state), Release() as release:
        if segment.source is None:
            lie_in = _blocks_of(segment)
            gone = {extent: lie_in[extent] for extent in extents}
            expand.unmapped(state.blocks, gone)
            release(state.segments.withdraw, segment, extents)
        else:
            silo.remove(segment.guard.next)
        state.count_memory(silo, -size, len(extents))
        if segment.expandable:
            for extent in extents:
                state.note("segment_unmap", extent.address, extent.size, silo)
        if not segment.extents or segment.source is not None:
            if not segment.expandable:
                state.note("segment_free", segment.address, segment.size, silo)
            release(state.segments.close, segment)
            state.note_closed(segment)
    return size


def release_silos(state: State, silos: Iterable[Silo]) -> Size:
    """Give back whatever is free as a whole in some silos; return how many bytes."""
    freed: int = 0
    with Release() as release:
        for silo in list(silos):
            idle = cached(silo)
            if not idle:
                continue
            # Raises before anything of this silo is changed.
            state.finish(silo.stream)
            for segment, extents in idle:
                freed += sum(extent.size for extent in extents)
                release(give_back, state, segment, extents)
        for gone in state.pools.bury():
            state.ledger.bury(gone)
    return Size(freed)


def give_back_rest(state: State) -> None:
    """Give back all that is free of a closed allocator, and events at the end."""
    with Release() as release:
        release(release_silos, state, state.pools.silos())
        if not state.pending:
            release(state.pending.close)


def trim(state: State, keep: int) -> Size:
    """Give back free memory of freeable pools until at most ``keep`` stays cached."""
    idle = [(seg, exts) for silo in freeable(state) for seg, exts in cached(silo)]
    have: int = sum(extent.size for _, extents in idle for extent in extents)
    freed: int = 0
    with Release() as release:
        for segment, extents in idle:
            chosen: list[Extent] = []
            # From the end: what is left stays together.
            for extent in reversed(extents):
                if have - extent.size < keep and segment.expandable:
                    continue
                chosen.append(extent)
                have -= extent.size
            if not segment.expandable and have < keep:
                have += sum(extent.size for extent in chosen)
                continue
            if chosen:
                state.finish(segment.silo.stream)
                freed += sum(extent.size for extent in chosen)
                release(give_back, state, segment, chosen)
    return Size(freed)


def collect(state: State) -> Size:
    """Give back idle classic segments of large blocks, the longest idle first.

    Until what is held falls to the threshold of the limit; nobody is waited for but
    the streams of what goes. Returns how many bytes.
    """
    threshold = state.settings.garbage_collection_threshold
    excess = state.segments.held - int(threshold * state.limit)
    freed: int = 0
    while freed < excess:
        ages = {
            segment: silo.searches - segment.idle_since
            for silo in state.pools.default.large.values()
            for segment in silo.segments
            if not segment.expandable
            and (block := segment.whole()) is not None
            and block.state is FREE
        }
        if not ages:
            break
        average = sum(ages.values()) / len(ages)
        for segment in [s for s, age in ages.items() if age >= average]:
            if freed >= excess:
                break
            state.finish(segment.silo.stream)
            freed += give_back(state, segment, list(segment.extents))
    return Size(freed)
