"""Memory on its way out: nobody finds it any more, and it goes without the lock.

What is unmapped may still be in use by work that its stream has been given, so the
stream is waited for first. Where that cannot be done, memory is put back as it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from sapwood.allocator.caching import expand
from sapwood.allocator.caching.bins import Bin
from sapwood.allocator.caching.block import FREE, Extent, Segment
from sapwood.allocator.caching.expand import Donor
from sapwood.allocator.caching.segments import Segments
from sapwood.allocator.caching.state import State
from sapwood.allocator.caching.stitch import close_to_moves, open_to_moves
from sapwood.driver.api import Driver, StreamHandle
from sapwood.driver.release import Release
from sapwood.units import Size

Chosen = Mapping[Segment, Sequence[Extent]]
"""Idle extents by segment; all of one that is not expandable."""


class Removal:
    """An errand: extents are unmapped, and given back unless their memory is kept.

    ``gone`` are those that were, afterwards. Where a stream is not over that must not
    be waited for, as nobody is ``patient``, its extents are put back.
    """

    def __init__(
        self,
        segments: Segments,
        chosen: Chosen,
        opened: Sequence[Segment],
        *,
        keep: bool,
        patient: bool,
    ) -> None:
        self._segments, self._chosen, self._opened = segments, chosen, opened
        self._keep, self._patient = keep, patient
        self._by_stream: dict[StreamHandle, list[Segment]] = {}
        for segment in chosen:
            self._by_stream.setdefault(segment.bin.stream, []).append(segment)
        self.gone: dict[Segment, Sequence[Extent]] = {}
        self._seconds = 0.0

    @property
    def freed(self) -> Size:
        """The bytes that were given back."""
        return Size(
            _size(extent for extents in self.gone.values() for extent in extents)
        )

    @property
    def kept(self) -> list[Donor]:
        """What is mapped nowhere, if it was to be kept."""
        return [(s, extent) for s, extents in self.gone.items() for extent in extents]

    def perform(self, driver: Driver) -> None:
        """Wait for the streams, unmap, and give back."""
        with Release() as release:
            for stream, segments in self._by_stream.items():
                release(self._remove, driver, stream, segments)

    def _remove(
        self, driver: Driver, stream: StreamHandle, leaving: Sequence[Segment]
    ) -> None:
        if not driver.query_stream(stream):
            if not self._patient:
                return
            # Waited for before, mostly: this is for work that came meanwhile.
            driver.synchronize_stream(stream)
        start = time.perf_counter()
        with Release() as release:
            for segment in leaving:
                extents = self.gone[segment] = self._chosen[segment]
                if segment.source is None:
                    release(self._segments.unmap, extents)
                    if not self._keep:
                        release(self._segments.discard, extents)
        self._seconds += time.perf_counter() - start

    def commit(self, state: State) -> Surrender | None:
        """Let segments go on without what went, and with what did not."""
        state.ledger.driver_seconds += self._seconds
        state.segments.departures += bool(self.gone)
        for segment in self._chosen:
            _released(state.segments.leaving, segment)
        for segment, extents in self._chosen.items():
            if segment not in self.gone:
                _reveal(state, segment, extents)
            elif segment.expandable:
                self._let_go(state, segment, extents)
        for segment in self._opened:
            if not segment.holes:
                close_to_moves(state, segment)
        empty = [segment for segment in self.gone if _is_empty(state, segment)]
        for segment in empty:
            _close(state, segment)
        for pool in state.pools.bury():
            state.ledger.bury(pool)
        return Surrender(state.segments, empty) if empty else None

    def _let_go(
        self, state: State, segment: Segment, extents: Sequence[Extent]
    ) -> None:
        if self._keep:
            state.segments.moved += _size(extents)
        else:
            state.segments.away -= _size(extents)
        state.ledger.device_frees += len(extents)
        for extent in extents:
            state.note("segment_unmap", extent.address, extent.size, segment.bin)


def removal(
    state: State, chosen: Chosen, *, keep: bool = False, patient: bool = True
) -> Removal:
    """Decide to remove idle extents, which are out of sight from now on."""
    opened = [segment for segment in chosen if keep and not segment.expandable]
    for segment in opened:
        open_to_moves(state, segment)
    for segment, extents in chosen.items():
        _hide(state, segment, extents)
    return Removal(state.segments, chosen, opened, keep=keep, patient=patient)


def _hide(state: State, segment: Segment, extents: Sequence[Extent]) -> None:
    leaving = state.segments.leaving
    leaving[segment] = leaving.get(segment, 0) + 1
    if not segment.expandable:
        segment.bin.remove(segment.guard.next)
        return
    lie_in = expand.blocks_of(segment)
    expand.unmapped(state.blocks, {extent: lie_in[extent] for extent in extents})
    state.segments.take_out(segment, extents)
    state.ledger.change(segment.bin, "reserved_bytes", -_size(extents))


def _reveal(state: State, segment: Segment, extents: Sequence[Extent]) -> None:
    if not segment.expandable:
        segment.bin.add(segment.guard.next)
        return
    state.segments.put_back(segment, extents)
    expand.remapped(state.blocks, segment, extents)
    state.ledger.change(segment.bin, "reserved_bytes", _size(extents))


def _released(leaving: dict[Segment, int], segment: Segment) -> None:
    leaving[segment] -= 1
    if not leaving[segment]:
        del leaving[segment]


def _is_empty(state: State, segment: Segment) -> bool:
    if not segment.expandable:
        return True
    return not segment.extents and segment not in state.segments.leaving


def _close(state: State, segment: Segment) -> None:
    """Let a segment be in no book; what is left of it is on its way to the device."""
    if not segment.expandable:
        state.count_memory(segment.bin, -segment.size, len(segment.extents))
        state.note("segment_free", segment.address, segment.size, segment.bin)
        if segment.source is None:
            state.segments.take_out(segment, list(segment.extents))
            state.segments.away -= segment.size
    state.segments.unlist(segment)
    state.note_closed(segment)


class Surrender:
    """An errand: what is in no book any more is given back.

    Segments with their addresses, and memory that is mapped nowhere.
    """

    def __init__(
        self,
        segments: Segments,
        closed: Sequence[Segment] = (),
        extents: Sequence[Extent] = (),
    ) -> None:
        self._segments, self._closed, self._extents = segments, closed, extents

    def perform(self, driver: Driver) -> None:
        """Give it back."""
        del driver
        with Release() as release:
            release(self._segments.discard, self._extents)
            for segment in self._closed:
                release(self._segments.surrender, segment)

    def commit(self, state: State) -> None:
        """Remember that it is gone."""
        state.segments.away -= _size(self._extents)
        state.segments.departures += 1


def _size(extents: Iterable[Extent]) -> int:
    return sum(extent.size for extent in extents)


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
    return cached(state, state.pools.bins()) if state.closed else {}


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
