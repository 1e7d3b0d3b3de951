"""The counters while they change: a journal of uses, folded when somebody reads.

A hit appends one tuple and touches no counter. Folding goes through the journal in
order, so peaks are exact, in every scope: everything, class, pool, stream.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from sapwood.allocator.caching.blocks import Bin
from sapwood.allocator.caching.picture import PoolId
from sapwood.allocator.caching.records.statistics import Account, Counters, Tally
from sapwood.driver.api import StreamHandle

JOURNAL_LIMIT: Final = 1024
"""So many entries are folded at once, for a pause that nobody notices."""

Use = tuple[Bin, int, int, int]
"""By how much these change in a bin: allocated, requested and active bytes."""

_Takes = tuple[tuple[str, int], ...]

# Families that change together, and which result of `_climb` each takes.
_ALLOCATED: Final[_Takes] = (("allocation", 0), ("allocated_bytes", 1))
_ACTIVE: Final[_Takes] = (("active", 0), ("active_bytes", 1), ("requested_bytes", 2))
_SPLIT: Final[_Takes] = (("inactive_split", 0), ("inactive_split_bytes", 1))


class Count:
    """One counter that goes up and down."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def add(self, delta: int) -> None:
        """Change it once."""
        self.current += delta
        if delta > 0:
            self.allocated += delta
            self.peak = max(self.peak, self.current)
        else:
            self.freed -= delta

    def run(self, run: Run) -> None:
        """Change it as often as a run of changes did."""
        self.peak = max(self.peak, self.current + run.top)
        self.current += run.up - run.down
        self.allocated += run.up
        self.freed += run.down

    def inherit(self, other: Count) -> None:
        """Go on for two."""
        self.current += other.current
        self.peak = max(self.peak, self.current)
        self.allocated += other.allocated
        self.freed += other.freed

    def tally(self) -> Tally:
        """Return it as a plain value."""
        return Tally(self.current, self.peak, self.allocated, self.freed)


@dataclass(frozen=True, slots=True)
class Run:
    """What a run of changes amounts to: all rises, all falls, the highest point."""

    up: int
    down: int
    top: int


def _climb(uses: Iterable[Use]) -> tuple[Run, Run, Run]:
    """Return what a run of uses amounts to: in number, in bytes, and as asked for.

    One loop takes less than a pass in C for each of nine results.
    """
    number = bytes_ = asked = 0
    rises = gained = wished = 0
    longest = largest = greatest = 0
    for _, size, wish, _ in uses:
        bytes_ += size
        asked += wish
        if size > 0:
            number += 1
            rises += 1
            gained += size
            wished += wish
            if number > longest:  # noqa: PLR1730 - max is a call
                longest = number
            if bytes_ > largest:  # noqa: PLR1730
                largest = bytes_
            if asked > greatest:  # noqa: PLR1730
                greatest = asked
        else:
            number -= 1
    return (
        Run(rises, rises - number, longest),
        Run(gained, gained - bytes_, largest),
        Run(wished, wished - asked, greatest),
    )


_Scope = dict[str, Count]

_Key = tuple[str, object]
"""A scope: the field of `Counters` that it is in, and its key there."""

_TOTAL: Final[_Key] = ("total", None)


def _scope() -> _Scope:
    return {family.name: Count() for family in fields(Account)}


def _keys(bin_: Bin) -> tuple[_Key, ...]:
    """Return the scopes that a bin is counted in."""
    pool, class_ = bin_.pool.id, bin_.size_class
    return (
        _TOTAL,
        ("classes", class_),
        ("pools", pool),
        ("pool_classes", (pool, class_)),
        ("streams", bin_.stream),
    )


class Ledger:
    """All counters of one allocator; called under its lock.

    ``uses`` and ``splits`` are the journals: append to them, then `settle` now and
    again. ``happened`` counts under those names in `Counters` that are numbers alone.
    """

    def __init__(self) -> None:
        self.uses: list[Use] = []
        self.splits: list[tuple[Bin, int]] = []
        self.oversize_allocations, self.oversize_segments = Count(), Count()
        self.happened = Counter[str]()
        self.driver_seconds = 0.0
        always = _TOTAL, ("classes", "small"), ("classes", "large")
        self._scopes = defaultdict(_scope, {key: _scope() for key in always})

    def change(self, bin_: Bin, family: str, delta: int) -> None:
        """Change one counter of a bin that is in no journal."""
        for key in _keys(bin_):
            self._scopes[key][family].add(delta)

    def settle(self) -> None:
        """Fold the journals into the counters."""
        uses, splits = self.uses.copy(), self.splits.copy()
        self.uses.clear()
        self.splits.clear()
        if [size for _, size, _, active in uses if size != active]:
            # What waits for other streams is active, and not allocated.
            self._fold([use for use in uses if use[1]], _ALLOCATED)
            held = [(bin_, held, asked, held) for bin_, _, asked, held in uses if held]
            self._fold(held, _ACTIVE)
        elif uses:
            self._fold(uses, (*_ALLOCATED, *_ACTIVE))
        if splits:
            self._fold([(bin_, size, 0, size) for bin_, size in splits], _SPLIT)

    def _fold(self, uses: Sequence[Use], families: _Takes) -> None:
        """Let a run of uses change some families, in every scope it belongs to."""
        distinct = {use[0] for use in uses}
        members = defaultdict[_Key, set[Bin]](set)
        for bin_ in distinct:
            for key in _keys(bin_):
                members[key].add(bin_)
        # Scopes of the same bins share one climb.
        climbs: dict[frozenset[Bin], tuple[Run, ...]] = {}
        for key, inside in members.items():
            chosen = frozenset(inside)
            if chosen not in climbs:
                everything = len(chosen) == len(distinct)
                mine = uses if everything else [use for use in uses if use[0] in chosen]
                climbs[chosen] = _climb(mine)
            for family, of in families:
                self._scopes[key][family].run(climbs[chosen][of])

    def allocated(self) -> int:
        """Return the bytes in blocks that somebody holds."""
        self.settle()
        return self._scopes[_TOTAL]["allocated_bytes"].current

    def peak_allocated(self, more: int) -> int:
        """Return the most bytes allocated at once, when ``more`` will be."""
        return max(
            self.allocated() + more, self._scopes[_TOTAL]["allocated_bytes"].peak
        )

    def bequeath(self, stream: StreamHandle, successor: StreamHandle) -> None:
        """Let a stream's counters go on under its successor's; journals are folded."""
        self.settle()
        for family, count in self._scopes.pop(("streams", stream), {}).items():
            self._scopes["streams", successor][family].inherit(count)

    def bury(self, pool: PoolId) -> None:
        """Forget the counters of a pool that is no more."""
        self.settle()
        self._scopes.pop(("pools", pool), None)
        for class_ in ("small", "large"):
            self._scopes.pop(("pool_classes", (pool, class_)), None)

    def reset_peaks(self) -> None:
        """Let every peak be what is current."""
        self.settle()
        for count in self._counts():
            count.peak = count.current

    def reset_accumulated(self) -> None:
        """Begin counting rises, falls and occurrences anew."""
        self.settle()
        for count in self._counts():
            count.allocated = count.freed = 0
        self.happened.clear()
        self.driver_seconds = 0.0

    def _counts(self) -> list[Count]:
        counts = [count for scope in self._scopes.values() for count in scope.values()]
        return [*counts, self.oversize_allocations, self.oversize_segments]

    def read(self) -> Counters:
        """Return all counters as plain values."""
        self.settle()
        accounts = defaultdict[str, dict[Any, Account]](dict)
        for (place, key), scope in self._scopes.items():
            tallies = {family: count.tally() for family, count in scope.items()}
            accounts[place][key] = Account(**tallies)
        return Counters(
            total=accounts["total"][None],
            classes=accounts["classes"],
            pools=accounts["pools"],
            pool_classes=accounts["pool_classes"],
            streams=accounts["streams"],
            oversize_allocations=self.oversize_allocations.tally(),
            oversize_segments=self.oversize_segments.tally(),
            hits=accounts["total"][None].allocation.allocated - self.happened["misses"],
            **self.happened,
            driver_seconds=self.driver_seconds,
        )
