"""What has happened to the calls of one function, or of a whole runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

Tally = Counter[str]
"""The counters of `Stats` while they count."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Calls by how they were run, and what that cost.

    ``warmups``, ``recordings``, ``restored`` (by recordings of other processes),
    ``replays`` and ``passed_through`` count calls;
    ``evicted`` recordings; ``copied_bytes`` arguments copied in and back by replays;
    ``escaped`` outputs copied out to ordinary memory. ``skipped`` are those that
    were passed through, by reason: pairs of that and how many there were.
    """

    warmups: int = 0
    recordings: int = 0
    replays: int = 0
    passed_through: int = 0
    restored: int = 0
    evicted: int = 0
    copied_bytes: int = 0
    escaped: int = 0
    skipped: tuple[tuple[str, int], ...] = ()


def stats_of(tally: Tally, skipped: Mapping[str, int]) -> Stats:
    """Return the counts; ``skipped`` are the calls that were passed through."""
    pairs = tuple(skipped.items())
    return Stats(**tally, passed_through=sum(skipped.values()), skipped=pairs)
