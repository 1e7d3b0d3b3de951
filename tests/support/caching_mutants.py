"""Faulty variants of the caching allocator, which `Caching` must catch.

Each is a line or two of the library written wrongly; `Mutant` says how it is put there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

from sapwood.allocator.caching import (
    pages,
    release,
    serve,
    waits,
)
from sapwood.allocator.caching.allocator import Allocator
from sapwood.allocator.caching.blocks import Bin, Pool, Pools
from sapwood.allocator.caching.gate import Gate
from sapwood.allocator.caching.pending import Pending
from sapwood.allocator.caching.records import ledger
from sapwood.allocator.caching.segments import Segments
from sapwood.allocator.caching.state import State
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
        "no coalescing with what lies before",
        Bin.join,
        "if before.state is FREE:",
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
        waits.poll,
        "if not _is_over(driver, use):",
        "if False:",
    ),
    mutant(
        "one event for many",
        Pending.take_unmarked,
        "if s >= 0]",
        "if s >= 0][:1]",
    ),
    mutant("use forgotten", State.use, "block.users = ", "users = "),
    mutant(
        "view unprotected",
        Allocator.record_stream,
        "if address:",
        "if address in self._blocks:",
    ),
    mutant(
        "crossing without wait",
        Pending.order,
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
        pages.extents_in,
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
        (waits.wait, "driver.synchronize_event(event)", "pass"),
        (release._await_stream, "if not driver.query_stream(stream):", "if False:"),
    ),
    _both(
        "pages moved under work",
        (serve._moved, "if last or bin_.stream in over]", "]"),
        (release._await_stream, "if not driver.query_stream(stream):", "if False:"),
    ),
    mutant(
        "undo forgotten",
        Segments.map,
        "undo(self.driver.unmap, address, size)",
        "pass",
    ),
    mutant(
        "calls under the lock",
        Gate._hold,
        "self._catch_up()",
        "self._catch_up(), self.lock.acquire()",
    ),
    mutant(
        "asked under the lock",
        Allocator._asked,
        "return ",
        "return self._gate.lock.acquire() and ",
    ),
    Mutant("fraction ignored", _unlimited),
    mutant(
        "double free accepted",
        State.held,
        "if block is not None and block.state is ALLOCATED:",
        "if block is not None:",
    ),
    mutant(
        "successor forgotten",
        State.bequeath,
        "if block.users and not block.users.isdisjoint({stream, successor}):",
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
        release.give_back,
        "return remove(gate, chosen(state))",
        "return remove(gate, chosen(state)) * 0",
    ),
    _both(
        "other caches kept before failing",
        (serve.given_up, "release.cached(state, release.freeable(state))", "{}"),
        (pages.donors, "in state.pools.all.values()", "in ()"),
    ),
    mutant(
        "bytes not uncounted",
        State.retire_ready,
        "0, -block.requested, -block.size",
        "0, 0, -block.size",
    ),
    mutant(
        "counted on the wrong stream",
        ledger._keys,
        '("streams", bin_.stream),',
        '("streams", 0),',
    ),
)
