"""Who may change an allocator's state: one caller at a time, and no finaliser inside.

Under the lock the driver is called only to grow: to reserve, create, map and set
access, and to undo that where it fails. All other calls are decided under the lock,
made without it (`Gate.unlocked`), and committed under it. Garbage collection may run a
finaliser between any two lines, on the thread that holds the lock. What it frees is
put off then, until somebody enters.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sapwood.allocator.caching.blocks import Block
from sapwood.allocator.caching.state import State
from sapwood.driver.api import CaptureStatus, Driver, StreamHandle
from sapwood.errors import MisuseError

_PLAIN: Final = 0
"""The short way is open."""

_SPECIAL: Final = 1
"""Something is under way that only the long way looks after."""

BUSY: Final = 2
"""Blocks are changing hands."""


class Gate:
    """The lock of an allocator, its ``mode``, and ``calm``: its mode while unlocked.

    ``calling`` are the driver calls that threads make without the lock: the thread of
    each. `_called` tells when some are over. `_late` are blocks that finalisers freed
    inside other calls.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.lock = threading.RLock()
        self._called = threading.Condition(self.lock)
        self.calling: dict[object, int] = {}
        # The first call goes the long way, and finds out which serves the next.
        self.mode = self.calm = _SPECIAL
        self._late: deque[Block] = deque()

    @contextmanager
    def entered(self, *, alone: bool = False) -> Iterator[State]:
        """Hold the lock and everything; raises `MisuseError` inside such a call.

        ``alone``: when no other thread makes driver calls without it.
        """
        if self.is_inside():
            raise _inside_a_call()
        with self.lock:
            if alone:
                if threading.get_ident() in self.calling.values():
                    raise _inside_a_call()
                self._called.wait_for(lambda: not self.calling)
            self._hold()
            try:
                yield self.state
            finally:
                self._let_go()

    @contextmanager
    def observed(self, *streams: StreamHandle) -> Iterator[State]:
        """Enter, and know which of these streams, and of captures', do not record."""
        with self.entered() as state:
            captured = state.captures()
            if captured:
                asked = set(streams).union(*captured)
                with self.unlocked() as driver:
                    quiet = {s for s in asked if _is_quiet(driver, s)}
                state.quiet = quiet
            yield state

    @contextmanager
    def unlocked(self, *, waiting: bool = False) -> Iterator[Driver]:
        """Let go of the lock for driver calls, within `entered`; then hold it again.

        The calls are short, as others wait for them in `outlast`; but those that are
        ``waiting`` for work of the device, nobody waits for.
        """
        calls = object()
        if not waiting:
            self.calling[calls] = threading.get_ident()
        self._let_go()
        self.lock.release()
        try:
            yield self.state.driver
        finally:
            self.lock.acquire()
            self._hold()
            self.calling.pop(calls, None)
            self._called.notify_all()

    def _hold(self) -> None:
        self.mode, self.state.quiet = BUSY, ()
        self._catch_up()

    def _let_go(self) -> None:
        self._catch_up()
        state = self.state
        special = (
            state.closed
            or state.pools.routes
            or state.pending
            or state.history is not None
            or state.settings.roundup_power2_divisions
        )
        self.calm = self.mode = _SPECIAL if special else _PLAIN
        # From here on the next call of malloc or free catches up.
        if self._late:
            self.calm = self.mode = _SPECIAL

    def is_inside(self) -> bool:
        """Whether this thread holds the lock, and is in a finaliser therefore."""
        # What a Condition asks its lock, too; to enter an RLock twice is no error.
        return self.lock._is_owned()  # type: ignore[attr-defined, no-any-return]  # noqa: SLF001

    def outlast(self) -> int:
        """Wait until the driver calls that other threads make now are over.

        Returns how often memory went so far: more often than before is a reason to
        ask for it again.
        """
        with self.lock:
            me = threading.get_ident()
            theirs = {calls for calls, thread in self.calling.items() if thread != me}
            self._called.wait_for(lambda: theirs.isdisjoint(self.calling))
            return self.state.segments.departures

    # Finalisers.

    def put_off(self, block: Block) -> bool:
        """Free a block later; say whether it was not put off already."""
        if block in self._late:
            return False
        self._late.append(block)
        self.calm = _SPECIAL
        if self.mode != BUSY:
            self.mode = _SPECIAL
        return True

    def _catch_up(self) -> None:
        while self._late:
            self.state.give(self._late.popleft())


def _is_quiet(driver: Driver, stream: StreamHandle) -> bool:
    return driver.capture_status(stream) is CaptureStatus.NONE


def _inside_a_call() -> MisuseError:
    return MisuseError(
        "the allocator was called by a finaliser, or a signal handler, that ran "
        "inside a call of its own. There only free is possible"
    )
