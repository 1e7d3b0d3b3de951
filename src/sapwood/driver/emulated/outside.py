"""The emulated device's streams as other libraries know them: by raw numbers.

No raw number is a handle, so that one taken for the other is refused. 0 and 1 are the
default stream, and 2 is another for each thread, as in CUDA; none waits for others.
"""

from __future__ import annotations

import threading
from itertools import count

from sapwood.driver.emulated.schedules import Queue, Schedule
from sapwood.driver.results import Refusal, Result

__all__ = ["FIRST_HANDLE", "Outside"]

FIRST_HANDLE = 3
"""Handles begin behind the numbers of default streams."""

_PER_THREAD = 2
_FIRST, _STEP = 0x5EED_0000_0000, 0x100  # look like addresses, as CUDA's do


class Outside:
    """Which queue each raw number means."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._queues: dict[int, Queue] = {}
        self._numbers = count(_FIRST, _STEP)
        self._thread = threading.local()
        self.default = schedule.open()

    def queue(self, raw: int) -> Queue:
        """Return the queue that a library means by ``raw``."""
        if raw in {0, 1}:
            return self.default
        if raw == _PER_THREAD:
            return self._of_thread()
        try:
            return self._queues[raw]
        except KeyError:
            raise Refusal(
                Result.INVALID_HANDLE,
                f"no stream is called {raw:#x}: adopt what another library gave as its "
                "raw stream, while that stream lives",
            ) from None

    def raw(self, queue: Queue) -> int:
        """Return what a queue is called, naming it if nobody asked before."""
        if queue is self.default:
            return 0
        if queue is getattr(self._thread, "queue", None):
            return _PER_THREAD
        for raw, each in self._queues.items():
            if each is queue:
                return raw
        return self.name(queue)

    def name(self, queue: Queue) -> int:
        """Return a new raw number for a queue."""
        raw = next(self._numbers)
        self._queues[raw] = queue
        return raw

    def forget(self, queue: Queue) -> None:
        """End the name of a queue that ends, if it has one."""
        self._queues = {
            raw: each for raw, each in self._queues.items() if each is not queue
        }

    def _of_thread(self) -> Queue:
        found: Queue | None = getattr(self._thread, "queue", None)
        if found is None:
            found = self._thread.queue = self._schedule.open()
        return found
