"""Faulty variants of the caching allocator, which `Caching` must catch.

Each is a line or two of the library written wrongly; `Mutant` says how it is put there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

from sapwood.allocator.caching import events, expand, grow, serving, streams
from sapwood.allocator.caching.allocator import Allocator
from sapwood.allocator.caching.bins import Bin
from sapwood.allocator.caching.controls import Controls
from sapwood.allocator.caching.gate import Gate
from sapwood.allocator.caching.leaving import Removal
from sapwood.allocator.caching.pending import Pending
from sapwood.allocator.caching.pools import Pool, Pools
from sapwood.allocator.caching.records.ledger import Ledger
from sapwood.allocator.caching.rounds import Rounds
from sapwood.allocator.caching.segments import Segments
from sapwood.allocator.caching.serving import Serving
from sapwood.allocator.caching.state import State
from sapwood.allocator.caching.waits import Polling, Waits
from tests.support.tree_mutants import Mutant, miswritten, mutant

__all__ = ["CACHING_MUTANTS"]


def _both(name: str, *faults: tuple[Callable[..., Any], str, str]) -> Mutant:
    """Return a mutant of several lines, each of which makes up for the others."""
    return Mutant(name, partial(_at_once, faults))


@contextmanager
def _at_once(
    faults: tuple[tuple[Callable[..., Any], str, str], ...],
) -> Iterator[None]:
    with ExitStack() as stack:
        for fault in faults:
            stack.enter_context(miswritten(*fault))
        yield


@contextmanager
def _unlimited() -> Iterator[None]:
    limit, before = "limit", State.limit
    setattr(State, limit, property(lambda state: state.total))
    try:
        yield
    finally:
        setattr(State, limit, before)


CACHING_MUTANTS: Final = (
    mutant(
        "no coalescing",
        Bin.join,
        "if after.state is FREE:",
        "if False:",
    ),
    mutant(
        "no coalescing the long way",
        expand.join_free,
        "if block.prev.state is FREE:",
        "if False:",
    ),
    mutant(
        "too small a block",
        Bin.cut,
        "if more < 0:",
        "if (more := max(more, 0)) < 0:",
    ),
    mutant(
        "stream ignored",
        Pool.bin,
        "bin_ = bins.get(stream)",
        "bin_ = next(iter(bins.values()), None)",
    ),
    mutant(
        "event ignored",
        Polling.perform,
        "if not driver.query_event(mark.event):",
        "if False:",
    ),
    mutant(
        "one event for many",
        Pending.unmarked_uses,
        "if s >= 0]",
        "if s >= 0][:1]",
    ),
    mutant("use forgotten", streams.use, "block.users = ", "users = "),
    mutant(
        "view unprotected",
        Allocator.record_stream,
        "if address:",
        "if address in self._blocks:",
    ),
    mutant(
        "crossing without wait",
        events.order,
        "driver.wait_event(later, event)",
        "pass",
    ),
    mutant(
        "lent block taken for one's own",
        State.take,
        "if bin_.stream != demand.stream:",
        "if False:",
    ),
    mutant(
        "partial unmap",
        expand.extents_in,
        "first, key=_end)",
        "first, key=_start)",
    ),
    mutant(
        "half withdrawn",
        Segments.unmap,
        "release(self.driver.unmap, address, size)",
        "pass",
    ),
    _both(
        "emptied without wait",
        (Waits.wait, "driver.synchronize_event(event)", "pass"),
        (Removal._remove, "if not driver.query_stream(stream):", "if False:"),
    ),
    _both(
        "pages moved under work",
        (Serving._moved, "if last or bin_.stream in over]", "]"),
        (Removal._remove, "if not driver.query_stream(stream):", "if False:"),
    ),
    mutant(
        "undo forgotten",
        Segments.map,
        "undo(self.driver.unmap, address, size)",
        "pass",
    ),
    mutant(
        "errands under the lock",
        Gate._see_through,
        "release(errand.perform, self._state.driver)",
        "self._lock.acquire(), release(errand.perform, self._state.driver)",
    ),
    mutant(
        "asked under the lock",
        Controls._asked,
        "return ",
        "return self._lock.acquire() and ",
    ),
    Mutant("fraction ignored", _unlimited),
    mutant(
        "double free accepted",
        streams.held,
        "if block is not None and block.state is ALLOCATED:",
        "if block is not None:",
    ),
    mutant(
        "heir forgotten",
        streams.bequeath,
        "if block.users and not block.users.isdisjoint({stream, heir}):",
        "if False:",
    ),
    mutant(
        "pool ignored",
        Pools.routed,
        "return route.pool",
        "return None",
    ),
    mutant(
        "trim says nothing",
        Rounds._give_back,
        "return going.freed",
        "return Size(0)",
    ),
    _both(
        "other caches kept before failing",
        (serving.given_up, "leaving.cached(state, leaving.freeable(state))", "{}"),
        (grow.donors, "return donating(state, demand)", "return []"),
    ),
    mutant(
        "bytes not uncounted",
        State.retire,
        "0, -block.requested, -block.size",
        "0, 0, -block.size",
    ),
    mutant(
        "counted on the wrong stream",
        Ledger._scopes,
        "self._streams[bin_.stream],",
        "self._streams[0],",
    ),
)
