"""What the figures of torch's functions are to reach, and whether they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

__all__ = ["Goal", "goals_of", "memory_goals"]

REPLAYED: Final = ("same inputs", "other inputs")
MEMORY: Final = 300.0
RECORDING: Final = 2.75
"""Half of what torch's own trees take for the same function, in milliseconds."""


class Goal(NamedTuple):
    """A figure, and the most that it may be."""

    what: str
    found: float
    most: float

    def __str__(self) -> str:
        says = "met" if self.found <= self.most else "MISSED"
        return f"{self.what:40} {self.found:9.2f} <= {self.most:9.2f}  {says}"


def goals_of(name: str, found: Mapping[str, Any]) -> Iterator[Goal]:
    """Yield the goals of a row by its name, of the columns that were measured.

    Times are in microseconds, those of all calls together where a row has many.
    """
    calls, pinned = found["calls"], found["pinned"]
    columns = found["columns"]
    raw, trees = columns.get("by hand"), columns.get("trees")
    for way in REPLAYED:
        mine = columns.get(way)
        if not mine or "host" not in mine:
            continue
        if raw and "host" in raw:
            most = raw["total"] + 10 * calls
            yield Goal(f"{way}: total, raw + 10", mine["total"], most)
            most = raw["host"] + (4 + 0.12 * pinned) * calls
            yield Goal(f"{way}: host, raw + 4 + 0.12 x {pinned}", mine["host"], most)
        if trees and "host" in trees:
            for kind in ("host", "total"):
                yield Goal(f"{way}: {kind}, trees", mine[kind], trees[kind])
        yield from _own(name, way, mine, trees)


def _own(
    name: str, way: str, mine: Mapping[str, Any], trees: Mapping[str, Any] | None
) -> Iterator[Goal]:
    """Yield the goals that one row has."""
    if name == "mlp":
        yield Goal(f"{way}: host", mine["host"], 6.0)
        if trees and "host" in trees:
            yield Goal(f"{way}: host, trees / 30", mine["host"], trees["host"] / 30)
            yield Goal(f"{way}: total, trees / 5", mine["total"], trees["total"] / 5)
    elif name == "training":
        yield Goal(f"{way}: total", mine["total"], 180.0)
    elif name.startswith("inputs-"):
        n = int(name.removeprefix("inputs-"))
        copied = n if way == "other inputs" else 0
        most = 5 + 0.4 * copied + 1.5 * n
        yield Goal(f"{way}: host, 5 + 0.4 x {copied} + 1.5 x {n}", mine["host"], most)


def memory_goals(order: str, mib: float, median: float) -> Iterator[Goal]:
    """Yield the goals of eight recordings, in MiB and in milliseconds of each."""
    yield Goal(f"{order}: MiB", mib, MEMORY)
    yield Goal(f"{order}: ms of a recording", median, RECORDING)
