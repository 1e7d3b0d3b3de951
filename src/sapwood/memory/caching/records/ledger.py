"""The counters while they change: a journal of uses, folded when somebody reads.

A hit appends one tuple and touches no counter. Folding goes through the journal in
order, so peaks are exact, in every scope: everything, class, pool, stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from typing import Any, Final, Literal, get_args

from sapwood.driver.api import StreamHandle
from sapwood.memory.caching.picture import PoolId, SizeClass
from sapwood.memory.caching.records.counters import Account, Counters, Tally
from sapwood.memory.caching.silo import Silo

__all__ = ["JOURNAL_LIMIT", "Count", "Ledger", "Run", "Use"]

JOURNAL_LIMIT: Final = 1024
"""So many entries are folded at once, for a pause that nobody notices."""

Use = tuple[Silo, int, int, int]
"""By how much these change in a silo: allocated, requested and active bytes."""

Family = Literal[
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
]

_FAMILIES: Final[tuple[Family, ...]] = get_args(Family)


class Count:
    """One counter that goes up and down."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def add(self, delta: int) -> None:
        """Change it once."""
        self.run(Run(max(delta, 0), max(-delta, 0), delta))

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


def _run(deltas: Sequence[int]) -> Run:
    net, gross = sum(deltas), sum(map(abs, deltas))
    return Run((gross + net) // 2, (gross - net) // 2, max(accumulate(deltas)))


def _signs(deltas: Sequence[int]) -> list[int]:
    return [(delta > 0) - (delta < 0) for delta in deltas]


_Scope = dict[Family, Count]


def _fold(scopes: Sequence[_Scope], runs: Mapping[Family, Run]) -> None:
    for scope in scopes:
        for family, run in runs.items():
            scope[family].run(run)


def _scope() -> _Scope:
    return {family: Count() for family in _FAMILIES}


def _account(scope: _Scope) -> Account:
    return Account(**{family: count.tally() for family, count in scope.items()})


class Ledger:
    """All counters of one allocator; called under its lock.

    ``uses`` and ``splits`` are the journals: append to them, then `settle` now and
    again.
    """

    def __init__(self) -> None:
        self.uses: list[Use] = []
        self.splits: list[tuple[Silo, int]] = []
        self.oversize_allocations, self.oversize_segments = Count(), Count()
        self.retries = self.ooms = self.rejections = self.synchronizations = 0
        self.device_allocs = self.device_frees = self.misses = 0
        self.driver_seconds = 0.0
        self._total = _scope()
        self._classes: dict[SizeClass, _Scope] = {"small": _scope(), "large": _scope()}
        self._pools = defaultdict[PoolId, _Scope](_scope)
        self._pool_classes = defaultdict[tuple[PoolId, SizeClass], _Scope](_scope)
        self._streams = defaultdict[StreamHandle, _Scope](_scope)

    def change(self, silo: Silo, family: Family, delta: int) -> None:
        """Change one counter of a silo that is in no journal."""
        for scope in self._scopes(silo):
            scope[family].add(delta)

    def settle(self) -> None:
        """Fold the journals into the counters."""
        if self.uses:
            silos, *columns = zip(*self.uses, strict=True)
            self.uses.clear()
            for scopes, sizes, asked, held in self._grouped(silos, columns):
                count, bytes_ = _run(_signs(sizes)), _run(sizes)
                same = held == sizes
                runs: dict[Family, Run] = {
                    "allocation": count,
                    "allocated_bytes": bytes_,
                    "requested_bytes": _run(asked),
                    "active": count if same else _run(_signs(held)),
                    "active_bytes": bytes_ if same else _run(held),
                }
                _fold(scopes, runs)
        if self.splits:
            silos, *columns = zip(*self.splits, strict=True)
            self.splits.clear()
            for scopes, sizes in self._grouped(silos, columns):
                count, bytes_ = _run(_signs(sizes)), _run(sizes)
                _fold(scopes, {"inactive_split": count, "inactive_split_bytes": bytes_})

    def _grouped(
        self, silos: Sequence[Silo], columns: Sequence[Sequence[int]]
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the scopes that the same silos make up, and the columns for these."""
        distinct = set(silos)
        members: dict[int, tuple[_Scope, set[Silo]]] = {}
        for silo in distinct:
            for scope in self._scopes(silo):
                members.setdefault(id(scope), (scope, set()))[1].add(silo)
        groups: dict[frozenset[Silo], list[_Scope]] = {}
        for scope, inside in members.values():
            groups.setdefault(frozenset(inside), []).append(scope)
        for chosen, scopes in groups.items():
            if len(chosen) == len(distinct):
                yield scopes, *columns
            else:
                mine = list(map(chosen.__contains__, silos))
                yield scopes, *(list(compress(column, mine)) for column in columns)

    def _scopes(self, silo: Silo) -> tuple[_Scope, ...]:
        pool, class_ = silo.pool.id, silo.size_class
        return (
            self._total,
            self._classes[class_],
            self._pools[pool],
            self._pool_classes[pool, class_],
            self._streams[silo.stream],
        )

    def allocated(self) -> int:
        """Return the bytes in blocks that somebody holds."""
        self.settle()
        return self._total["allocated_bytes"].current

    def peak_allocated(self, more: int) -> int:
        """Return the most bytes allocated at once, when ``more`` will be."""
        return max(self.allocated() + more, self._total["allocated_bytes"].peak)

    def bequeath(self, stream: StreamHandle, heir: StreamHandle) -> None:
        """Let the counters of a stream go on under its heir's; journals are folded."""
        self.settle()
        for family, count in self._streams.pop(stream, {}).items():
            self._streams[heir][family].inherit(count)

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
        self.retries = self.ooms = self.rejections = self.synchronizations = 0
        self.device_allocs = self.device_frees = self.misses = 0
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
            num_alloc_retries=self.retries,
            num_ooms=self.ooms,
            num_oom_rejections=self.rejections,
            num_sync_all_streams=self.synchronizations,
            num_device_alloc=self.device_allocs,
            num_device_free=self.device_frees,
            hits=self._total["allocation"].allocated - self.misses,
            misses=self.misses,
            driver_seconds=self.driver_seconds,
        )
