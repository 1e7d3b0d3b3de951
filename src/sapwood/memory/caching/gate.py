"""Who may change an allocator's state: one caller at a time, and no finaliser inside.

Garbage collection may run a finaliser between any two lines, on the thread that holds
the lock. What it frees while blocks are changing hands is put off until they have.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sapwood.driver.release import Release
from sapwood.errors import MisuseError
from sapwood.memory.caching.block import Block
from sapwood.memory.caching.relief import give_back_rest
from sapwood.memory.caching.state import State
from sapwood.memory.caching.streams import give
from sapwood.memory.caching.waits import Waits

__all__ = ["BUSY", "PLAIN", "SPECIAL", "Gate"]

PLAIN: Final = 0
"""The short way is open."""

SPECIAL: Final = 1
"""Something is under way that only the long way looks after."""

BUSY: Final = 2
"""Blocks are changing hands."""

_NOTHING: Final = Waits()


class Gate:
    """The lock of an allocator, and its mode while nobody holds it (`_calm`)."""

    __slots__ = ("_calm", "_late", "_lock", "_mode", "_state")

    def __init__(self, state: State) -> None:
        self._state = state
        self._lock = threading.RLock()
        # The first call goes the long way, and finds out which serves the next.
        self._mode = self._calm = SPECIAL
        self._late: deque[Block] = deque()

    @contextmanager
    def _entered(self) -> Iterator[State]:
        """Hold the lock and everything; raises `MisuseError` inside such a call."""
        with self._lock:
            if self._mode == BUSY:
                raise MisuseError(
                    "the allocator was called by a finaliser, or a signal handler, "
                    "that ran inside a call of its own. There only free is possible"
                )
            self._mode = BUSY
            try:
                self._catch_up()
                yield self._state
            finally:
                try:
                    self._catch_up()
                finally:
                    self._calm = self._mode = self._mood()
                    # From here on finalisers go ahead by themselves.
                    if self._late:
                        self._calm = self._mode = SPECIAL

    def _mood(self) -> int:
        state = self._state
        special = (
            state.closed
            or state.pools.routes
            or state.pending
            or state.history is not None
            or state.settings.roundup_power2_divisions
        )
        return SPECIAL if special else PLAIN

    def _wait(self, waits: Waits) -> None:
        """Wait without the lock, so that nobody else is kept waiting."""
        if waits == _NOTHING:
            return
        try:
            waits.wait(self._state.driver)
        finally:
            with self._entered() as state:
                state.pending.take_back(waits.lent)
                if state.closed:
                    give_back_rest(state)

    def _put_off(self, block: Block) -> bool:
        """Free a block later; say whether it was not put off already."""
        if block in self._late:
            return False
        self._late.append(block)
        self._calm = SPECIAL
        return True

    def _catch_up(self) -> None:
        with Release() as release:
            while self._late:
                release(give, self._state, self._late.popleft())
