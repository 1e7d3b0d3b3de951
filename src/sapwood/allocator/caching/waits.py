"""Waiting for work: decided under the lock, done without it, so that nobody else waits.

A stream may be gone while somebody waits, an event of one's own may not: so what a
stream has to do is marked first, as an errand, and the marks are waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sapwood.allocator.caching.block import Block
from sapwood.allocator.caching.events import recorded
from sapwood.allocator.caching.pending import Mark, Use
from sapwood.allocator.caching.state import State
from sapwood.driver.api import Driver, EventHandle, StreamHandle
from sapwood.driver.release import Release


class Marking:
    """An errand: events are recorded of the uses of freed blocks.

    Where one cannot be, the use is unmarked again, and the others are recorded.
    """

    def __init__(self, uses: list[Use], spare: list[EventHandle]) -> None:
        self._uses, self._spare = uses, spare
        self._made: dict[Use, Mark] = {}

    def perform(self, driver: Driver) -> None:
        """Record them."""
        with Release() as release:
            for use in self._uses:
                release(self._record, driver, use)

    def _record(self, driver: Driver, use: Use) -> None:
        block, stream = use
        event = recorded(driver, self._spare, stream)
        self._made[use] = Mark(event, stream, block)

    def commit(self, state: State) -> None:
        """Let blocks wait for the events."""
        for use in self._uses:
            mark = self._made.get(use)
            if mark is None:
                state.pending.unmark(use)
            else:
                state.pending.mark(mark)
        state.pending.events.take_back(self._spare)
        state.retire_ready()


def marking(state: State, blocks: Collection[Block]) -> Marking:
    """Decide to record what unmarked blocks wait for."""
    uses = state.pending.unmarked_uses(blocks)
    return Marking(uses, state.pending.events.lend(len(uses)))


class Polling:
    """An errand: which freed blocks wait for nothing any more; waits for nobody."""

    def __init__(self, heads: list[tuple[Mark, ...]]) -> None:
        self._heads = heads
        self._over: list[Mark] = []

    def perform(self, driver: Driver) -> None:
        """Ask about the events of each stream, until one is not over."""
        for marks in self._heads:
            for mark in marks:
                if not driver.query_event(mark.event):
                    break
                self._over.append(mark)

    def commit(self, state: State) -> Polling | None:
        """Let blocks be free; go on where all were over that were asked about."""
        state.pending.end(self._over)
        state.retire_ready()
        last = {marks[-1] for marks in self._heads}
        return None if last.isdisjoint(self._over) else polling(state)


def polling(state: State) -> Polling:
    """Decide to ask about the blocks that wait for events."""
    return Polling(state.pending.heads())


class Waits:
    """What somebody waits for: marks of freed blocks, and the work of streams.

    Without ``patient``, streams are asked only. ``over`` are those that had no work.
    More work may come meanwhile: who then unmaps waits again, but not for long.
    """

    def __init__(
        self,
        marks: list[Mark],
        streams: list[StreamHandle],
        spare: list[EventHandle],
        *,
        patient: bool,
    ) -> None:
        self.marks, self.streams, self.patient = marks, streams, patient
        self.over: set[StreamHandle] = set()
        self._spare, self._lent = spare, list[EventHandle]()
        self._ended: list[Mark] = []

    def perform(self, driver: Driver) -> None:
        """Ask the streams, and mark what those have to do that are waited for."""
        for stream in self.streams:
            if driver.query_stream(stream):
                self.over.add(stream)
            elif self.patient:
                self._lent.append(recorded(driver, self._spare, stream))

    def commit(self, state: State) -> None:
        """Have back what was not recorded."""
        state.pending.events.take_back(self._spare)

    def wait(self, driver: Driver) -> None:
        """Wait for all of it; no errand, as it may take long."""
        for mark in self.marks:
            driver.synchronize_event(mark.event)
            self._ended.append(mark)
        for event in self._lent:
            driver.synchronize_event(event)

    def end(self, state: State) -> None:
        """Let blocks be free whose marks were waited for."""
        events = state.pending.events
        state.pending.end(self._ended)
        events.unwatch(mark.event for mark in self.marks)
        events.take_back(self._lent)
        state.retire_ready()


def waits(
    state: State,
    *,
    marks: Iterable[Mark] = (),
    streams: Iterable[StreamHandle] = (),
    patient: bool = True,
) -> Waits:
    """Decide to wait for marks and streams, or only to ask about streams."""
    marked, asked = list(marks), list(dict.fromkeys(streams))
    events = state.pending.events
    events.watch(mark.event for mark in marked)
    spare = events.lend(len(asked)) if patient else []
    return Waits(marked, asked, spare, patient=patient)
