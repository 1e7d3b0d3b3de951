"""From a log of allocations and frees to a trace.

Each event of a log has a time of its own, so nothing in it coincides. What is freed
without having been allocated was there before the log began.
"""

from __future__ import annotations

from collections.abc import Iterable

from sapwood.allocator.simulate.trace import Buffer, Trace
from sapwood.units import Size

__all__ = ["Log"]


class Log:
    """Takes events in their order, then gives the trace."""

    def __init__(self) -> None:
        self._now = 0
        self._live: dict[int, tuple[int, int, int]] = {}
        self._ended: list[tuple[int, int, int, int]] = []

    def allocate(self, address: int, size: int, stream: int) -> None:
        """Note an allocation; whatever was noted there before has ended."""
        self._now += 1
        self._end(address)
        self._live[address] = self._now, size, stream

    def free(self, address: int, size: int, stream: int) -> None:
        """Note that an allocation has ended."""
        self._now += 1
        if address in self._live:
            self._end(address)
        else:
            self._ended.append((0, self._now, size, stream))

    def survive(self, blocks: Iterable[tuple[int, int, int]]) -> None:
        """Note blocks ``(address, size, stream)`` that are there at the end.

        Those that the log does not know were there before it began.
        """
        for address, size, stream in blocks:
            self._live.setdefault(address, (0, size, stream))

    def trace(self, name: str) -> Trace:
        """Return the trace; what is still there ends after everything else."""
        end = self._now + 1
        left = [
            (lower, end, size, stream) for lower, size, stream in self._live.values()
        ]
        return Trace.of(
            name,
            (
                Buffer(str(number), lower, upper, Size(size), stream)
                for number, (lower, upper, size, stream) in enumerate(
                    sorted(self._ended + left)
                )
            ),
        )

    def _end(self, address: int) -> None:
        if address in self._live:
            lower, size, stream = self._live.pop(address)
            self._ended.append((lower, self._now, size, stream))
