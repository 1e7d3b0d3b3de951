"""The last calls of one runtime, with their host times."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import repeat
from time import perf_counter_ns
from typing import NamedTuple


class Ran(enum.IntEnum):
    """How a call was run."""

    REPLAY = 0
    WARM_UP = 1
    RECORD = 2
    RESTORE = 3
    PASS_THROUGH = 4

    @property
    def text(self) -> str:
        """The name as people read it."""
        return self.name.lower().replace("_", "-")


class Entry(NamedTuple):
    """One call: when it began and how long it took, in nanoseconds of host time.

    ``function`` is its number; ``recording`` that of the recording, 0 if there is none;
    ``miss`` that of the miss which it began with, 0 if with none.
    """

    began: int
    took: int
    ran: Ran
    function: int
    recording: int
    miss: int


class Timeline:
    """The last ``size`` calls, and the memory in use meanwhile; none where that is 0.

    ``memory`` are moments with the pages that recordings, live outputs and eager arrays
    had then. Guarded by the device's lock, as what it tells of.
    """

    def __init__(self, size: int) -> None:
        self._calls: deque[tuple[int, ...]] = deque(maxlen=size)
        self.memory: deque[tuple[int, ...]] = deque(maxlen=size)
        self.origin = perf_counter_ns()

    def measured(self, now: int, pages: tuple[int, int, int]) -> None:
        """Note how many pages are in use ``now``, where they are others than before."""
        if not self.memory or self.memory[-1][1:] != pages:
            self.memory.append((now, *pages))

    def add(
        self, began: int, took: int, ran: int, function: int, recording: int, miss: int
    ) -> None:
        """Note a call that has ended; the fields are those of an `Entry`."""
        # A plain tuple of numbers, which the collector lets go of.
        self._calls.append((began, took, ran, function, recording, miss))

    def extend(
        self, began: Sequence[int], took: Sequence[int], ran: int, of: tuple[int, int]
    ) -> None:
        """Note calls that have ended, in order; ``of`` are function and recording."""
        same = map(repeat, (ran, *of, 0))
        self._calls.extend(zip(began, took, *same, strict=False))

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over the calls that are remembered, oldest first."""
        for began, took, ran, *rest in tuple(self._calls):
            yield Entry(began, took, Ran(ran), *rest)

    def __len__(self) -> int:
        return len(self._calls)
