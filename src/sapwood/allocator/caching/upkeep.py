"""What an allocator is told to do besides serving: empty, trim, configure, close."""

from __future__ import annotations

import operator
import threading
from typing import SupportsIndex

from sapwood.allocator.caching import leaving
from sapwood.allocator.caching.bins import Bin
from sapwood.allocator.caching.block import ALLOCATED
from sapwood.allocator.caching.picture import PoolId
from sapwood.allocator.caching.pools import Pool, Route
from sapwood.allocator.caching.records.history import History, HistoryOptions
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.caching.state import State
from sapwood.driver.api import StreamHandle
from sapwood.errors import MisuseError


def check_open(state: State) -> None:
    """Raise `MisuseError` where the allocator was closed."""
    if state.closed:
        raise MisuseError("this allocator is closed. Make a new one")


def begin(
    state: State, pool: PoolId, stream: StreamHandle | None, *, thread: bool
) -> None:
    """Route a stream, else this thread, else everybody to a pool."""
    mine = threading.get_ident() if thread and stream is None else None
    state.pools.begin(Route(state.pools.used(pool), mine, stream))


def end(state: State, id_: PoolId) -> None:
    """End a route; where a capture ended with it, so did the uses inside it."""
    state.pools.end(state.pools.named(id_), threading.get_ident())
    if not any(route.pool.capture for route in state.pools.routes):
        state.pending.unmarked_uses(state.pending.captured_only())
        state.retire_ready()


def release_pool(state: State, id_: PoolId) -> Pool:
    """Let go of a pool once; return it."""
    pool = state.pools.used(id_)
    pool.use_count -= 1
    return pool


def emptied(state: State, id_: PoolId | None) -> list[Bin]:
    """Return the bins whose caches go: those that are freeable, or of one pool.

    None inside a route or a capture. A capture's pool keeps its memory in place while
    it is in use.
    """
    if state.capturing():
        return []
    if id_ is not None:
        pool = state.pools.named(id_)
        return [] if pool.capture and not pool.freeable else pool.bins()
    mine = threading.get_ident()
    routed = any(route.thread == mine for route in state.pools.routes)
    return [] if routed else leaving.freeable(state)


def configure(state: State, settings: Settings) -> None:
    """Put settings in force; counters of what is oversize are counted anew."""
    changed = settings.max_split_size != state.settings.max_split_size
    state.settings = settings
    bins = state.pools.bins()
    for bin_ in bins:
        state.refresh(bin_)
    if not changed:
        return
    most = settings.max_split_size
    blocks = [b for b in state.blocks.values() if b.state is ALLOCATED]
    segments = [s for bin_ in bins for s in bin_.segments if not s.expandable]
    large = sum(most is not None and block.size > most for block in blocks)
    opened = sum(most is not None and segment.size > most for segment in segments)
    ledger = state.ledger
    ledger.oversize_allocations.add(large - ledger.oversize_allocations.current)
    ledger.oversize_segments.add(opened - ledger.oversize_segments.current)


def check_fraction(fraction: object) -> None:
    """Raise TypeError for what is no float, `MisuseError` outside [0, 1]."""
    if type(fraction) is not float:
        raise TypeError(
            f"a memory fraction is a float, not {type(fraction).__name__}: write "
            "0.5, or 1.0 for all"
        )
    if not 0.0 <= fraction <= 1.0:
        raise MisuseError(
            f"a memory fraction of {fraction} is not possible. Set one from 0.0 to 1.0"
        )


def checked_kept(keep: object) -> int:
    """Return how much to keep; TypeError if no whole number, `MisuseError` below 0."""
    if not isinstance(keep, SupportsIndex):
        raise TypeError(
            f"what trim keeps is a whole number of bytes, not {type(keep).__name__}: "
            "write trim(0), or round it"
        )
    whole = operator.index(keep)
    if whole < 0:
        raise MisuseError(f"cannot keep {whole} bytes: keep 0 or more")
    return whole


def record_history(
    state: State, options: HistoryOptions | None, *, clear: bool
) -> None:
    """Record under other options, or no more; earlier events stay readable."""
    if clear:
        state.past = History(HistoryOptions())
    past = state.history or state.past
    if options is None:
        state.past, state.history = past, None
    else:
        state.history = past.revised(options)
