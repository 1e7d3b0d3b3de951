"""Errands about freed blocks: recording what they wait for, and asking about it."""

from __future__ import annotations

from collections.abc import Collection

from sapwood.allocator.caching.block import Block
from sapwood.allocator.caching.events import recorded
from sapwood.allocator.caching.pending import Mark, Use
from sapwood.allocator.caching.state import State
from sapwood.driver.api import Driver, EventHandle
from sapwood.driver.release import Release

__all__ = ["Marking", "Polling", "marking", "polling"]


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
