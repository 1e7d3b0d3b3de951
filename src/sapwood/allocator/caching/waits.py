"""Waiting for work: decided under the lock, done without it, so that nobody else waits.

A stream may be gone while somebody waits, an event of one's own may not: so what a
stream has to do is marked first, as an errand, and the marks are waited for.
"""

from __future__ import annotations

from collections.abc import Iterable

from sapwood.allocator.caching.events import recorded
from sapwood.allocator.caching.pending import Mark
from sapwood.allocator.caching.state import State
from sapwood.driver.api import Driver, EventHandle, StreamHandle

__all__ = ["Waits", "waits"]


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
