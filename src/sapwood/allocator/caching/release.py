"""Memory on its way out: nobody finds it any more, and it goes without the lock.

What is unmapped may still be in use by work that its stream has been given, so the
stream is waited for first. Where that cannot be done, memory is put back as it was.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from sapwood.allocator.caching import pages
from sapwood.allocator.caching.blocks import FREE, Bin, Extent, Segment, size_of
from sapwood.allocator.caching.gate import Gate
from sapwood.allocator.caching.state import State
from sapwood.allocator.caching.waits import wait
from sapwood.driver.api import Driver, StreamHandle
from sapwood.driver.release import Release
from sapwood.units import Size

Chosen = Mapping[Segment, Sequence[Extent]]
"""Idle extents by segment; all of one that is not expandable."""


def give_back(gate: Gate, choose: Callable[[State], Chosen]) -> Size:
    """Give back what is chosen, once its streams were waited for; return the bytes.

    Chosen twice, before the wait and after it: what is used meanwhile stays, and all
    where anything is captured then.
    """

    def chosen(state: State) -> Chosen:
        return {} if state.capturing() else choose(state)

    with gate.observed() as state:
        wait(gate, [segment.bin.stream for segment in chosen(state)])
    with gate.observed() as state:
        return remove(gate, chosen(state))


def tidy(gate: Gate) -> None:
    """Give back what is left of an allocator that was closed."""
    if not gate.state.closed:
        return
    with Release() as release:
        release(give_back, gate, lambda state: cached(state, state.pools.bins()))
        release(_destroy_events, gate)


def _destroy_events(gate: Gate) -> None:
    with gate.entered() as state:
        # Who makes calls yet may have an event, and tidies up afterwards.
        if state.pending or gate.calling:
            return
        doomed, state.pending.spare = state.pending.spare, []
        with Release() as release, gate.unlocked() as driver:
            release.each(driver.destroy_event, doomed)


def remove(
    gate: Gate,
    chosen: Chosen,
    loose: list[pages.Donor] | None = None,
    *,
    patient: bool = True,
) -> Size:
    """Unmap idle extents, under the lock, and give them back; return the bytes.

    Where there is a list for what is ``loose``, they are kept there instead. Where a
    stream is not over that must not be waited for, as nobody is ``patient``, its
    extents are put back.
    """
    state, over = gate.state, set[StreamHandle]()
    opened = [s for s in chosen if loose is not None and not s.expandable]
    pages.open_to_moves(state, opened)
    for segment, extents in chosen.items():
        _hide(state, segment, extents)
    state.segments.leaving.update(list(chosen))
    gone: dict[Segment, Sequence[Extent]] = {}
    seconds = 0.0
    with Release() as release:
        try:
            with gate.unlocked() as driver:
                for stream in dict.fromkeys(segment.bin.stream for segment in chosen):
                    release(_await_stream, driver, stream, over, patient=patient)
                start = time.perf_counter()
                for segment, extents in chosen.items():
                    if segment.bin.stream in over:
                        gone[segment] = extents
                        if segment.source is None:
                            release(state.segments.unmap, extents)
                        if loose is None:
                            release(state.segments.discard, extents)
                seconds = time.perf_counter() - start
        finally:
            state.ledger.driver_seconds += seconds
            _go_on(state, chosen, gone, keep=loose is not None)
            pages.close_to_moves(state, opened)
            if loose is not None:
                loose += ((s, extent) for s, each in gone.items() for extent in each)
            release(surrender, gate, _closed(state, gone))
    return Size(sum(size_of(extents) for extents in gone.values()))


def _await_stream(
    driver: Driver, stream: StreamHandle, over: set[StreamHandle], *, patient: bool
) -> None:
    """Add a stream to those that are over, if it is, or when it is."""
    if not driver.query_stream(stream):
        if not patient:
            return
        # Waited for before, mostly: this is for work that came meanwhile.
        driver.synchronize_stream(stream)
    over.add(stream)


def _go_on(state: State, chosen: Chosen, gone: Chosen, *, keep: bool) -> None:
    """Let segments go on without what went, and with what did not."""
    state.segments.departures += bool(gone)
    state.segments.leaving -= Counter(list(chosen))
    for segment, extents in chosen.items():
        if segment not in gone:
            _reveal(state, segment, extents)
        elif segment.expandable:
            state.segments.moved += size_of(extents) if keep else 0
            state.segments.away -= 0 if keep else size_of(extents)
            state.ledger.happened["num_device_free"] += len(extents)
            for extent in extents:
                state.note("segment_unmap", extent.address, extent.size, segment.bin)


def _hide(state: State, segment: Segment, extents: Sequence[Extent]) -> None:
    if not segment.expandable:
        segment.bin.remove(segment.guard.next)
        return
    pages.unmapped(state.blocks, segment, extents)
    state.segments.take_out(segment, extents)
    state.ledger.change(segment.bin, "reserved_bytes", -size_of(extents))


def _reveal(state: State, segment: Segment, extents: Sequence[Extent]) -> None:
    if not segment.expandable:
        segment.bin.add(segment.guard.next)
        return
    state.segments.supply(segment, extents)
    state.segments.away -= size_of(extents)
    pages.mapped(state.blocks, segment, extents)
    state.ledger.change(segment.bin, "reserved_bytes", size_of(extents))


def _closed(state: State, gone: Iterable[Segment]) -> list[Segment]:
    """Return the segments of which nothing is left, and let them be in no book."""
    leaving = state.segments.leaving
    empty = [
        segment
        for segment in gone
        if not segment.expandable or not (segment.extents or segment in leaving)
    ]
    for segment in empty:
        if not segment.expandable:
            state.ledger.change(segment.bin, "reserved_bytes", -segment.size)
            state.ledger.happened["num_device_free"] += len(segment.extents)
            state.note("segment_free", segment.address, segment.size, segment.bin)
            if segment.source is None:
                state.segments.held -= segment.size
                segment.extents.clear()
        state.segments.unlist(segment)
        state.count_segment(segment, -1)
    for pool in state.pools.bury():
        state.ledger.bury(pool)
    return empty


def surrender(
    gate: Gate, closed: Sequence[Segment] = (), extents: Sequence[Extent] = ()
) -> None:
    """Give back, under the lock, what is in no book any more.

    Segments with their addresses, and memory that is mapped nowhere.
    """
    if not closed and not extents:
        return
    segments = gate.state.segments
    with Release() as release:
        try:
            with gate.unlocked():
                release(segments.discard, extents)
                release.each(segments.surrender, closed)
        finally:
            segments.away -= size_of(extents)
            segments.departures += 1


def freeable(state: State) -> list[Bin]:
    """Return the bins whose free memory may go at any time."""
    pools = state.pools.all.values()
    return [bin_ for pool in pools if pool.freeable for bin_ in pool.bins()]


def cached(state: State, bins: Iterable[Bin]) -> dict[Segment, list[Extent]]:
    """Return what bins could give back: segments, with extents of each.

    A segment that is not expandable goes as a whole, or not at all.
    """
    found: dict[Segment, list[Extent]] = {}
    for segment in (segment for bin_ in bins for segment in bin_.segments):
        if segment.expandable:
            extents = pages.idle_extents(segment)
            if extents:
                found[segment] = extents
        elif _is_idle(state, segment):
            found[segment] = list(segment.extents)
    return found


def _is_idle(state: State, segment: Segment) -> bool:
    block = segment.whole()
    free = block is not None and block.state is FREE
    return free and segment not in state.segments.leaving


def trimmed(state: State, keep: int) -> dict[Segment, list[Extent]]:
    """Return what goes of freeable pools until at most ``keep`` bytes stay cached."""
    caches = cached(state, freeable(state))
    have: int = sum(size_of(extents) for extents in caches.values())
    chosen: dict[Segment, list[Extent]] = {}
    for segment, extents in caches.items():
        # From the end: what is left stays together.
        parts = [[e] for e in reversed(extents)] if segment.expandable else [extents]
        for part in parts:
            if have - size_of(part) >= keep:
                chosen.setdefault(segment, []).extend(part)
                have -= size_of(part)
    return chosen


def idle(state: State) -> dict[Segment, list[Extent]]:
    """Return classic segments of large blocks to give back, the longest idle first.

    Until what is held falls to the threshold of the limit.
    """
    threshold = state.settings.garbage_collection_threshold
    excess = state.segments.held - int(threshold * state.limit)
    ages = {
        segment: bin_.searches - segment.idle_since
        for bin_ in state.pools.default.large.values()
        for segment in bin_.segments
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
