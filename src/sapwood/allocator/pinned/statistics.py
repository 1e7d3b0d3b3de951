"""Counters of pinned memory, under the names that dashboards know from PyTorch.

``allocations``: segments that the allocator owns, in use or cached;
``active_requests``: blocks that are handed out, or wait for copies. Peaks are exact.
Times are microseconds of the driver's calls.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(slots=True)
class _Tally:
    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0

    def add(self, amount: int) -> None:
        self.current += amount
        self.allocated += amount
        self.peak = max(self.peak, self.current)

    def subtract(self, amount: int) -> None:
        self.current -= amount
        self.freed += amount


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

    allocations: _Tally = field(default_factory=_Tally)
    allocated_bytes: _Tally = field(default_factory=_Tally)
    active_requests: _Tally = field(default_factory=_Tally)
    active_bytes: _Tally = field(default_factory=_Tally)
    requested_bytes: _Tally = field(default_factory=_Tally)
    host_alloc_time: _Times = field(default_factory=_Times)
    host_free_time: _Times = field(default_factory=_Times)

    def took(self, size: int, seconds: float) -> None:
        """Count a segment that came from the system."""
        self.allocations.add(1)
        self.allocated_bytes.add(size)
        self.host_alloc_time.add(seconds)

    def gave(self, size: int, seconds: float) -> None:
        """Count a segment that went back."""
        self.allocations.subtract(1)
        self.allocated_bytes.subtract(size)
        self.host_free_time.add(seconds)

    def handed_out(self, size: int, requested: int) -> None:
        """Count a block that somebody holds."""
        self.active_requests.add(1)
        self.active_bytes.add(size)
        self.requested_bytes.add(requested)

    def came_back(self, size: int, requested: int) -> None:
        """Count a block that is free again."""
        self.active_requests.subtract(1)
        self.active_bytes.subtract(size)
        self.requested_bytes.subtract(requested)

    def nested(self) -> dict[str, Any]:
        """Return all counters, by family; bytes where the name says so."""
        told = asdict(self)
        for call in ("alloc", "free"):
            times = told[f"host_{call}_time"]
            times["avg"] = times["total"] // max(times["count"], 1)
            told[f"num_host_{call}"] = times["count"]
        return told

    def flat(self) -> dict[str, int]:
        """Return all counters under dotted names, sorted."""
        found: dict[str, int] = {}
        for name, value in self.nested().items():
            if isinstance(value, dict):
                found |= {f"{name}.{key}": number for key, number in value.items()}
            else:
                found[name] = value
        return dict(sorted(found.items()))

    def reset_peaks(self) -> None:
        """Let every peak begin anew, at what is now."""
        for tally in self._tallies():
            tally.peak = tally.current

    def reset_accumulated(self) -> None:
        """Forget what is summed up since the beginning, times included."""
        for tally in self._tallies():
            tally.allocated = tally.freed = 0
        self.host_alloc_time, self.host_free_time = _Times(), _Times()

    def _tallies(self) -> list[_Tally]:
        values = [getattr(self, each.name) for each in fields(self)]
        return [each for each in values if isinstance(each, _Tally)]
