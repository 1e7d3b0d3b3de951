"""Counters of pinned memory, under the names that dashboards know from PyTorch.

``allocations``: segments that the allocator owns, in use or cached;
``active_requests``: blocks that are handed out, or wait for copies. Peaks are exact.
Times are microseconds of the driver's calls.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sapwood.allocator.caching.records.ledger import Count


@dataclass(slots=True)
class _Times:
    total: int = 0
    max: int = 0
    min: int = 0
    count: int = 0

    def add(self, seconds: float) -> None:
        spent = round(1e6 * seconds)
        self.min = min(self.min, spent) if self.count else spent
        self.max = max(self.max, spent)
        self.total += spent
        self.count += 1


_COUNTED = (
    *("allocations", "allocated_bytes"),
    *("active_requests", "active_bytes", "requested_bytes"),
)


class Statistics:
    """What happened since the allocator was made, or the last reset, by family."""

    def __init__(self) -> None:
        self.counts = {family: Count() for family in _COUNTED}
        self._times = {"alloc": _Times(), "free": _Times()}

    def count_segment(self, sign: int, size: int, seconds: float) -> None:
        """Count a segment that came from the system (1), or went back (-1)."""
        self.counts["allocations"].add(sign)
        self.counts["allocated_bytes"].add(sign * size)
        self._times["alloc" if sign > 0 else "free"].add(seconds)

    def count_block(self, sign: int, size: int, requested: int) -> None:
        """Count a block that somebody holds (1), or that is free again (-1)."""
        self.counts["active_requests"].add(sign)
        self.counts["active_bytes"].add(sign * size)
        self.counts["requested_bytes"].add(sign * requested)

    def nested(self) -> dict[str, Any]:
        """Return all counters, by family; bytes where the name says so."""
        counts = self.counts.items()
        told: dict[str, Any] = {name: count.tally()._asdict() for name, count in counts}
        for call, spent in self._times.items():
            average = spent.total // max(spent.count, 1)
            told[f"host_{call}_time"] = {**asdict(spent), "avg": average}
            told[f"num_host_{call}"] = spent.count
        return told

    def reset_peaks(self) -> None:
        """Let every peak begin anew, at what is now."""
        for count in self.counts.values():
            count.peak = count.current

    def reset_accumulated(self) -> None:
        """Forget what is summed up since the beginning, times included."""
        for count in self.counts.values():
            count.allocated = count.freed = 0
        self._times = {call: _Times() for call in self._times}
