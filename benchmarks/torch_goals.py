"""What the figures of torch's functions are to reach, and whether they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

__all__ = ["Goal", "goals_of", "memory_goals"]

REPLAYED: Final = ("same inputs", "other inputs")
COMPILED: Final = "on compiled"
MEMORY: Final = 300.0
RECORDED: Final = ("sapwood", "sapwood, inputs that stay", "sapwood on compiled")
RECORDING: Final = 2.75
"""Milliseconds where torch's own trees were not measured beside it: half of theirs."""


class Goal(NamedTuple):
    """A figure, and the most that it may be."""

    what: str
    found: float
    most: float

    def __str__(self) -> str:
        says = "met" if self.found <= self.most else "MISSED"
        return f"{self.what:46} {self.found:9.2f} <= {self.most:9.2f}  {says}"


def goals_of(name: str, found: Mapping[str, Any]) -> Iterator[Goal]:
    """Yield the goals of a row by its name, of the columns that were measured.

    Times are in microseconds, those of all calls together where a row has many. What
    torch's trees take in all is compared with recordings of the same kernels.
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
            yield Goal(f"{way}: host, trees", mine["host"], trees["host"])
        yield from _own(name, way, mine, trees)
    mine = columns.get(COMPILED)
    if mine and "host" in mine and trees and "host" in trees:
        for kind in ("host", "total"):
            yield Goal(f"{COMPILED}: {kind}, trees", mine[kind], trees[kind])


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


def memory_goals(memory: Mapping[str, Mapping[str, Any]]) -> Iterator[Goal]:
    """Yield the goals of eight recordings, by kind and order of what was measured.

    Those are MiB of all, and milliseconds of one: half of what torch's own trees take
    in the same order. Results are to be the plain function's, whatever recorded it.
    """
    trees = memory.get("trees", {})
    for kind, orders in memory.items():
        for order, found in orders.items():
            title = f"{kind}, {order}"
            if "ms" not in found:
                continue
            if kind in RECORDED:
                yield Goal(f"{title}: MiB", found["mib"], MEMORY)
                yield _recording(title, found["ms"], trees.get(order, {}))
            if "differ" in found:
                yield Goal(f"{title}: differing sizes", len(found["differ"]), 0)


def _recording(title: str, ms: Sequence[float], trees: Mapping[str, Any]) -> Goal:
    """Return the goal of what a recording takes."""
    if "ms" in trees:
        return Goal(f"{title}: ms, trees / 2", median(ms), median(trees["ms"]) / 2)
    return Goal(f"{title}: ms", median(ms), RECORDING)
