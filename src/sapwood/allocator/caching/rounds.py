"""What the operations of an allocator are made of: errands, and waits between them."""

from __future__ import annotations

from collections.abc import Callable, Collection

from sapwood.allocator.caching import leaving, streams
from sapwood.allocator.caching.events import Destruction
from sapwood.allocator.caching.gate import Gate
from sapwood.allocator.caching.leaving import Chosen, removal
from sapwood.allocator.caching.pools import Pool
from sapwood.allocator.caching.state import State
from sapwood.allocator.caching.waits import (
    Marking,
    Polling,
    Waits,
    marking,
    polling,
    waits,
)
from sapwood.driver.api import CaptureStatus, Driver, StreamHandle
from sapwood.driver.release import Release
from sapwood.units import Size


class _Look:
    """An errand: which streams are not recording."""

    def __init__(self, asked: Collection[StreamHandle]) -> None:
        self._asked = asked
        self.quiet: set[StreamHandle] = set()

    def perform(self, driver: Driver) -> None:
        """Ask."""
        for stream in self._asked:
            if driver.capture_status(stream) is CaptureStatus.NONE:
                self.quiet.add(stream)

    def commit(self, state: State) -> None:
        """It is for the asker only."""
        del state


class Rounds(Gate):
    """The gate, and who goes out through it."""

    __slots__ = ()

    def _look(self, *more: StreamHandle) -> Collection[StreamHandle]:
        """Return which streams of captures, and of ``more``, are not recording."""
        if not any(route.pool.capture for route in tuple(self._state.pools.routes)):
            return ()
        return self._send(lambda state: _Look({*state.capturable(), *more})).quiet

    # Freed blocks.

    def _attend(self) -> None:
        """Free the pending blocks that wait for nothing any more; waits for nobody."""
        if not self._state.pending:
            return
        errand: Marking | Polling
        with self._entered(quiet=self._look()) as state:
            if state.capturing():
                return
            unmarked = streams.unmarked(state)
            errand = marking(state, unmarked) if unmarked else polling(state)
            self._launched(errand)
        self._see_through(errand)
        if unmarked:
            self._send(polling)

    def _settle(self, pool: Pool | None = None) -> None:
        """Wait for what freed blocks, of one pool or all, wait for; they are free."""
        if not self._state.pending:
            return
        self._send(lambda state: marking(state, list(state.pending.unmarked)))
        self._outlast()
        with self._entered() as state:
            state.ledger.synchronizations += bool(state.pending)
        self._wait(lambda state: waits(state, marks=state.pending.marks(pool)))

    # Waiting.

    def _wait(
        self, decide: Callable[[State], Waits], quiet: Collection[StreamHandle] = ()
    ) -> Waits:
        """Wait without the lock, so that nobody else is kept waiting."""
        with self._entered(quiet=quiet) as state:
            waiting = self._launched(decide(state))
        try:
            self._see_through(waiting)
            waiting.wait(self._state.driver)
        finally:
            with self._entered() as state:
                waiting.end(state)
        return waiting

    # Giving memory back.

    def _give_back(self, choose: Callable[[State], Chosen]) -> Size:
        """Give back what is chosen, once its streams were waited for.

        Chosen twice, before the wait and after it: what is used meanwhile stays, and
        all where anything is captured then.
        """

        def chosen(state: State) -> Chosen:
            return {} if state.capturing() else choose(state)

        self._wait(
            lambda state: waits(state, streams=_streams(chosen(state))), self._look()
        )
        going = self._send(lambda state: removal(state, chosen(state)), self._look())
        return going.freed

    def _tidy(self) -> None:
        """Give back what is left of an allocator that was closed."""
        if not self._state.closed:
            return
        with Release() as release:
            release(self._give_back, leaving.everything)
            release(self._send, self._doomed)

    def _doomed(self, state: State) -> Destruction:
        # Whoever is out there yet may have an event, and tidies up afterwards.
        unused = not state.pending and not self._aloft
        return Destruction(state.pending.events.drain() if unused else [])


def _streams(chosen: Chosen) -> list[StreamHandle]:
    return [segment.bin.stream for segment in chosen]
