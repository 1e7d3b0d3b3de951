"""The counters while they change: a journal of uses, folded when somebody reads.

A hit appends one tuple and touches no counter. Folding goes through the journal in
order, so peaks are exact, in every scope: everything, class, pool, stream.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Final

from sapwood.allocator.caching.blocks import Bin
from sapwood.allocator.caching.picture import PoolId, SizeClass
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


def _scope() -> _Scope:
    return {family.name: Count() for family in fields(Account)}


def _account(scope: _Scope) -> Account:
    return Account(**{family: count.tally() for family, count in scope.items()})


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
        self._total = _scope()
        self._classes: dict[SizeClass, _Scope] = {"small": _scope(), "large": _scope()}
        self._pools = defaultdict[PoolId, _Scope](_scope)
        self._pool_classes = defaultdict[tuple[PoolId, SizeClass], _Scope](_scope)
        self._streams = defaultdict[StreamHandle, _Scope](_scope)

    def change(self, bin_: Bin, family: str, delta: int) -> None:
        """Change one counter of a bin that is in no journal."""
        for scope in self._scopes(bin_):
            scope[family].add(delta)

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
        for scopes, mine in self._grouped(uses):
            runs = _climb(mine)
            for scope in scopes:
                for family, of in families:
                    scope[family].run(runs[of])

    def _grouped(
        self, uses: Sequence[Use]
    ) -> Iterator[tuple[list[_Scope], Sequence[Use]]]:
        """Yield the scopes that the same bins make up, and the uses of these."""
        distinct = {use[0] for use in uses}
        members: dict[int, tuple[_Scope, set[Bin]]] = {}
        for bin_ in distinct:
            for scope in self._scopes(bin_):
                members.setdefault(id(scope), (scope, set()))[1].add(bin_)
        groups: dict[frozenset[Bin], list[_Scope]] = {}
        for scope, inside in members.values():
            groups.setdefault(frozenset(inside), []).append(scope)
        for chosen, scopes in groups.items():
            everything = len(chosen) == len(distinct)
            mine = uses if everything else [use for use in uses if use[0] in chosen]
            yield scopes, mine

    def _scopes(self, bin_: Bin) -> tuple[_Scope, ...]:
        pool, class_ = bin_.pool.id, bin_.size_class
        return (
            self._total,
            self._classes[class_],
            self._pools[pool],
            self._pool_classes[pool, class_],
            self._streams[bin_.stream],
        )

    def allocated(self) -> int:
        """Return the bytes in blocks that somebody holds."""
        self.settle()
        return self._total["allocated_bytes"].current

    def peak_allocated(self, more: int) -> int:
        """Return the most bytes allocated at once, when ``more`` will be."""
        return max(self.allocated() + more, self._total["allocated_bytes"].peak)

    def bequeath(self, stream: StreamHandle, successor: StreamHandle) -> None:
        """Let a stream's counters go on under its successor's; journals are folded."""
        self.settle()
        for family, count in self._streams.pop(stream, {}).items():
            self._streams[successor][family].inherit(count)

    def bury(self, pool: PoolId) -> None:
        """Forget the counters of a pool that is no more."""
        self.settle()
        self._pools.pop(pool, None)
        self._pool_classes.pop((pool, "small"), None)
        self._pool_classes.pop((pool, "large"), None)

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
        scopes = [
            self._total,
            *self._classes.values(),
            *self._pools.values(),
            *self._pool_classes.values(),
            *self._streams.values(),
        ]
        counts = [count for scope in scopes for count in scope.values()]
        return [*counts, self.oversize_allocations, self.oversize_segments]

    def read(self) -> Counters:
        """Return all counters as plain values."""
        self.settle()
        return Counters(
            total=_account(self._total),
            classes={key: _account(s) for key, s in self._classes.items()},
            pools={key: _account(s) for key, s in self._pools.items()},
            pool_classes={key: _account(s) for key, s in self._pool_classes.items()},
            streams={key: _account(s) for key, s in self._streams.items()},
            oversize_allocations=self.oversize_allocations.tally(),
            oversize_segments=self.oversize_segments.tally(),
            hits=self._total["allocation"].allocated - self.happened["misses"],
            **self.happened,
            driver_seconds=self.driver_seconds,
        )
