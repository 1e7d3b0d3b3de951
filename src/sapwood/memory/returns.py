"""The queue into which finalisers put what they give back.

Garbage collection can run a finaliser between any two lines, inside any lock, so it
only appends. Whoever holds the device's lock drains. After `close` no call drains any
more: then the finaliser itself does, if the lock is free.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from sapwood.driver.release import Release
from sapwood.driver.results import Result
from sapwood.errors import DriverError

Item = tuple[Callable[[Any], None], Any]


class Returns:
    """A queue of ``(give_back, what)`` pairs."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self.waiting: deque[Item] = deque()
        self.append: Callable[[Item], None] = self.waiting.append
        self._after: Callable[[], object] = bool
        self._draining = False
        self.rest: Callable[[], object] = bool

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def drain(self) -> None:
        """Give everything back, and the pages of kept outputs; called under the lock.

        A driver error is raised when all items are done: the call that reported it has
        done its work, as releases do.
        """
        if self._draining:
            return  # a finaliser that ran inside: its items are next all the same
        self.rest()
        self.drain_dropped()

    def drain_dropped(self) -> None:
        """Give back what finalisers have put here, and nothing else."""
        if self._draining or not self.waiting:
            return
        self._draining = True
        try:
            with Release() as release:
                while self.waiting:
                    # Taken out first: an interrupt in give_back then loses the item. If
                    # it were still in the queue, it would be given back twice, and the
                    # second time free memory that somebody else has by now.
                    give_back, what = self.waiting.popleft()
                    release(give_back, what)
        finally:
            self._draining = False

    def watch(self, after: Callable[[], object]) -> None:
        """From now on whoever appends also drains, and then calls ``after``.

        Not if its thread has the lock: it may be in the middle of a decision.
        """
        self._after = after
        self.append = self._append_unless_inside

    def close(self, after: Callable[[], object]) -> None:
        """From now on whoever appends also drains, and then calls ``after``."""
        self._after = after
        self.append = self._append_and_drain

    def end(self) -> None:
        """From now on nothing is given back: the driver has taken it all along."""
        self.append = lambda _: None
        self.waiting.clear()

    def _append_unless_inside(self, item: Item) -> None:
        if self._lock._is_owned():  # type: ignore[attr-defined] # noqa: SLF001
            self.waiting.append(item)
        else:
            self._append_and_drain(item)

    def _append_and_drain(self, item: Item) -> None:
        self.waiting.append(item)
        if self._draining:
            return
        # A loop: another thread may append while we drain, find the lock taken, and
        # leave its item to us.
        while self.waiting and self._lock.acquire(blocking=False):
            try:
                with Release() as release:
                    release(self.drain)
                    release(self._after)
            except DriverError as error:
                if error.name != Result.DEINITIALIZED.name:
                    raise
                self.end()  # the process ends, and the device went before
            finally:
                self._lock.release()
