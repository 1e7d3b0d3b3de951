"""The last calls of one runtime, with their host times; a ring that is made once."""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterator, Sequence
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
    """A ring of the last ``size`` calls; none are kept where that is 0.

    Adding one allocates nothing. Guarded by the device's lock, as what it tells of.
    """

    WIDTH = 6

    def __init__(self, size: int) -> None:
        self.size = size
        self._ring = array("q", bytes(8 * self.WIDTH * size))
        self._count = 0
        self.origin = perf_counter_ns()

    def add(
        self, began: int, took: int, ran: int, function: int, recording: int, miss: int
    ) -> None:
        """Note a call that has ended; the fields are those of an `Entry`."""
        if not self.size:
            return
        ring, at = self._ring, self._count % self.size * 6
        self._count += 1
        ring[at] = began
        ring[at + 1] = took
        ring[at + 2] = ran
        ring[at + 3] = function
        ring[at + 4] = recording
        ring[at + 5] = miss

    def extend(
        self, began: Sequence[int], took: Sequence[int], ran: int, of: tuple[int, int]
    ) -> None:
        """Note calls that have ended, in order; ``of`` are function and recording."""
        # Only the last ones will be remembered.
        skipped = max(0, len(began) - self.size)
        count = len(began) - skipped
        rows = array("q", bytes(8 * self.WIDTH * count))
        rows[0 :: self.WIDTH] = array("q", began[skipped:])
        rows[1 :: self.WIDTH] = array("q", took[skipped:])
        for column, value in zip((2, 3, 4), (ran, *of), strict=True):
            rows[column :: self.WIDTH] = array("q", [value]) * count
        while rows:
            at = self._count % self.size
            some = min(self.size - at, len(rows) // self.WIDTH)
            start, size = at * self.WIDTH, some * self.WIDTH
            self._ring[start : start + size] = rows[:size]
            self._count += some
            del rows[:size]

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over the calls that are remembered, oldest first."""
        for number in range(max(0, self._count - self.size), self._count):
            at = number % self.size * self.WIDTH
            began, took, ran, *rest = self._ring[at : at + self.WIDTH]
            yield Entry(began, took, Ran(ran), *rest)

    def __len__(self) -> int:
        return min(self._count, self.size)
