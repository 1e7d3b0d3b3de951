"""Events that are recorded again and again, and how to order streams by them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sapwood.driver.api import Driver, EventHandle, StreamHandle
from sapwood.driver.release import Release

if TYPE_CHECKING:
    from sapwood.allocator.caching.state import State


class Events:
    """The events of one allocator that mark nothing; changed under its lock.

    Somebody may be waiting for one that is over for others: while it is *watched* it
    is not lent, so that it is not recorded anew, nor destroyed.
    """

    def __init__(self) -> None:
        self._spare: list[EventHandle] = []
        self._watched: Counter[EventHandle] = Counter()
        self._loose: set[EventHandle] = set()

    def lend(self, number: int) -> list[EventHandle]:
        """Return so many events, or as many as there are."""
        kept = max(len(self._spare) - number, 0)
        lent, self._spare = self._spare[kept:], self._spare[:kept]
        return lent

    def take_back(self, events: Iterable[EventHandle]) -> None:
        """Have events that mark nothing any more."""
        for event in events:
            if event in self._watched:
                self._loose.add(event)
            else:
                self._spare.append(event)

    def watch(self, events: Iterable[EventHandle]) -> None:
        """Keep events as they are until `unwatch`; somebody waits for them."""
        self._watched.update(events)

    def unwatch(self, events: Iterable[EventHandle]) -> None:
        """End what `watch` began."""
        for event in events:
            self._watched[event] -= 1
            if self._watched[event]:
                continue
            del self._watched[event]
            if event in self._loose:
                self._loose.discard(event)
                self._spare.append(event)

    def drain(self) -> list[EventHandle]:
        """Return all spare events, to be destroyed."""
        drained, self._spare = self._spare, []
        return drained


def recorded(
    driver: Driver, spare: list[EventHandle], stream: StreamHandle
) -> EventHandle:
    """Return an event that marks all work of a stream: a spare one, or a new one.

    Where it cannot be recorded it stays among the spare ones.
    """
    if not spare:
        spare.append(driver.create_event())
    driver.record_event(spare[-1], stream)
    return spare.pop()


def order(
    driver: Driver,
    spare: list[EventHandle],
    later: StreamHandle,
    earlier: StreamHandle,
) -> None:
    """Order the further work of one stream after all work of another."""
    event = recorded(driver, spare, earlier)
    # A wait binds to the record before it: the event is free at once.
    spare.append(event)
    driver.wait_event(later, event)


class Destruction:
    """An errand: events that nobody needs any more are destroyed."""

    def __init__(self, doomed: list[EventHandle]) -> None:
        self.doomed = doomed

    def perform(self, driver: Driver) -> None:
        """Destroy them."""
        with Release() as release:
            for event in self.doomed:
                release(driver.destroy_event, event)

    def commit(self, state: State) -> None:
        """They were in no book."""
        del state
