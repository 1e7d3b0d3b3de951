"""Who may change an allocator's state: one caller at a time, and no finaliser inside.

Under the lock the driver is called only to grow: to reserve, create, map and set
access, and to undo that where it fails. All else is an errand, decided under the
lock, performed without it, and committed under it. Garbage collection may run a
finaliser between any two lines, on the thread that holds the lock. What it frees is
put off then, until somebody enters.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

from sapwood.allocator.caching.block import Block
from sapwood.allocator.caching.state import State
from sapwood.driver.api import Driver, StreamHandle
from sapwood.driver.release import Release
from sapwood.errors import MisuseError


class Errand(Protocol):
    """Something that the device is asked for, or to do, without the lock.

    Errands are short: nobody waits for work in one, but what is unmapped waits for
    its stream.
    """

    def perform(self, driver: Driver) -> None:
        """Make the calls; may raise, having made some of them."""

    def commit(self, state: State) -> Errand | None:
        """Bring the books up to what was done; return what is left to do, if any."""
        ...


PLAIN: Final = 0
"""The short way is open."""

_SPECIAL: Final = 1
"""Something is under way that only the long way looks after."""

BUSY: Final = 2
"""Blocks are changing hands."""

E = TypeVar("E", bound=Errand)


class Gate:
    """The lock of an allocator, and its mode while nobody holds it (`_calm`).

    `_aloft` are the errands under way, and whose threads'; `_landed` tells when one
    is over. `_late` are blocks that finalisers freed inside other calls.
    """

    __slots__ = ("_aloft", "_calm", "_landed", "_late", "_lock", "_mode", "_state")

    def __init__(self, state: State) -> None:
        self._state = state
        self._lock = threading.RLock()
        self._landed = threading.Condition(self._lock)
        self._aloft: dict[Errand, int] = {}
        # The first call goes the long way, and finds out which serves the next.
        self._mode = self._calm = _SPECIAL
        self._late: deque[Block] = deque()

    @contextmanager
    def _entered(
        self, *, alone: bool = False, quiet: Collection[StreamHandle] = ()
    ) -> Iterator[State]:
        """Hold the lock and everything; raises `MisuseError` inside such a call.

        ``alone``: when no errand of another thread is under way. ``quiet`` are
        streams known not to be recording.
        """
        if self._is_inside():
            raise _inside_a_call()
        with self._lock:
            if alone:
                if self._mine():
                    raise _inside_a_call()
                self._landed.wait_for(lambda: not self._aloft)
            self._mode, self._state.quiet = BUSY, quiet
            try:
                self._catch_up()
                yield self._state
            finally:
                self._catch_up()
                self._calm = self._mode = self._mood()
                # From here on the next call of malloc or free catches up.
                if self._late:
                    self._calm = self._mode = _SPECIAL

    def _is_inside(self) -> bool:
        """Whether this thread holds the lock, and is in a finaliser therefore."""
        # What a Condition asks its lock, too; to enter an RLock twice is no error.
        return self._lock._is_owned()  # type: ignore[attr-defined, no-any-return]  # noqa: SLF001

    def _mood(self) -> int:
        state = self._state
        special = (
            state.closed
            or state.pools.routes
            or state.pending
            or state.history is not None
            or state.settings.roundup_power2_divisions
        )
        return _SPECIAL if special else PLAIN

    # Errands.

    def _send(
        self, decide: Callable[[State], E], quiet: Collection[StreamHandle] = ()
    ) -> E:
        """Decide on an errand under the lock, and see it through without it."""
        with self._entered(quiet=quiet) as state:
            errand = self._launched(decide(state))
        self._see_through(errand)
        return errand

    def _launched(self, errand: E) -> E:
        """Let an errand, decided under the lock, be under way; `_see_through` it."""
        self._aloft[errand] = threading.get_ident()
        return errand

    def _see_through(self, errand: Errand) -> None:
        with Release() as release:
            try:
                release(errand.perform, self._state.driver)
            finally:
                following = self._land(errand)
                if following is not None:
                    release(self._see_through, following)

    def _land(self, errand: Errand) -> Errand | None:
        with self._entered() as state:
            following = errand.commit(state)
            if following is not None:
                self._aloft[following] = self._aloft[errand]
            del self._aloft[errand]
            self._landed.notify_all()
            return following

    def _mine(self) -> list[Errand]:
        me = threading.get_ident()
        return [errand for errand, thread in self._aloft.items() if thread == me]

    def _outlast(self) -> int:
        """Wait until what other threads have under way now is over.

        Returns how often memory went so far: more often than before is a reason to
        ask for it again.
        """
        with self._lock:
            theirs = self._aloft.keys() - self._mine()
            self._landed.wait_for(lambda: theirs.isdisjoint(self._aloft))
            return self._state.segments.departures

    # Finalisers.

    def _put_off(self, block: Block) -> bool:
        """Free a block later; say whether it was not put off already."""
        if block in self._late:
            return False
        self._late.append(block)
        self._calm = _SPECIAL
        if self._mode != BUSY:
            self._mode = _SPECIAL
        return True

    def _catch_up(self) -> None:
        while self._late:
            self._state.give(self._late.popleft())


def _inside_a_call() -> MisuseError:
    return MisuseError(
        "the allocator was called by a finaliser, or a signal handler, that ran "
        "inside a call of its own. There only free is possible"
    )
