"""Counters of pinned memory, under the names that dashboards know from PyTorch.

``allocations``: segments that the allocator owns, in use or cached;
``active_requests``: blocks that are handed out, or wait for copies. Peaks are exact.
Times are microseconds of the driver's calls.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
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


@dataclass(slots=True)
class Statistics:
    """What happened since the allocator was made, or the last reset."""

    allocations: Count = field(default_factory=Count)
    allocated_bytes: Count = field(default_factory=Count)
    active_requests: Count = field(default_factory=Count)
    active_bytes: Count = field(default_factory=Count)
    requested_bytes: Count = field(default_factory=Count)
    host_alloc_time: _Times = field(default_factory=_Times)
    host_free_time: _Times = field(default_factory=_Times)

    def count_segment(self, sign: int, size: int, seconds: float) -> None:
        """Count a segment that came from the system (1), or went back (-1)."""
        self.allocations.add(sign)
        self.allocated_bytes.add(sign * size)
        time = self.host_alloc_time if sign > 0 else self.host_free_time
        time.add(seconds)

    def count_block(self, sign: int, size: int, requested: int) -> None:
        """Count a block that somebody holds (1), or that is free again (-1)."""
        self.active_requests.add(sign)
        self.active_bytes.add(sign * size)
        self.requested_bytes.add(sign * requested)

    def nested(self) -> dict[str, Any]:
        """Return all counters, by family; bytes where the name says so."""
        counts = self._counts().items()
        told: dict[str, Any] = {name: count.tally()._asdict() for name, count in counts}
        for call in ("alloc", "free"):
            name = f"host_{call}_time"
            told[name] = times = asdict(getattr(self, name))
            times["avg"] = times["total"] // max(times["count"], 1)
            told[f"num_host_{call}"] = times["count"]
        return told

    def reset_peaks(self) -> None:
        """Let every peak begin anew, at what is now."""
        for count in self._counts().values():
            count.peak = count.current

    def reset_accumulated(self) -> None:
        """Forget what is summed up since the beginning, times included."""
        for count in self._counts().values():
            count.allocated = count.freed = 0
        self.host_alloc_time, self.host_free_time = _Times(), _Times()

    def _counts(self) -> dict[str, Count]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: each for name, each in values.items() if isinstance(each, Count)}
