"""Serving a demand that the silo's free blocks may not serve at once."""

from __future__ import annotations

from sapwood.memory.caching import relief
from sapwood.memory.caching.block import Block
from sapwood.memory.caching.grow import grow
from sapwood.memory.caching.growth import Attempt
from sapwood.memory.caching.state import Demand, State
from sapwood.memory.caching.stitch import donating
from sapwood.memory.caching.waits import Waits

__all__ = ["perform", "waits"]


def waits(state: State, attempt: Attempt, demand: Demand) -> Waits:
    """Return what to wait for before an attempt, so that it need not wait itself."""
    if attempt is Attempt.SETTLE:
        return relief.waits_for_pending(state)
    if attempt is Attempt.OWN:
        return relief.waits_for_cache(state, [demand.silo])
    if attempt is Attempt.OTHERS:
        return relief.waits_for_cache(state, relief.freeable(state))
    if attempt is Attempt.STITCH:
        return relief.waits_for_cache(state, donating(state, demand))
    return Waits()


def perform(state: State, attempt: Attempt, demand: Demand) -> Block | None:
    """Make one attempt; return the free block that serves the demand, if it did."""
    silo = demand.silo
    if attempt is Attempt.FIT:
        return state.fit(silo, demand.need)
    if attempt is Attempt.BORROW:
        return _borrow(state, demand)
    if attempt is Attempt.SPARE:
        return _spare(state, demand)
    if attempt is Attempt.COLLECT:
        relief.collect(state)
    elif attempt is Attempt.OWN:
        relief.release_silos(state, [silo])
    elif attempt is Attempt.SETTLE:
        relief.settle(state)
    elif attempt is Attempt.OTHERS:
        state.ledger.retries += 1
        relief.release_silos(state, relief.freeable(state))
    found = state.fit(silo, demand.need) if attempt is not Attempt.GROW else None
    if found is None:
        found = grow(state, demand, last=attempt is Attempt.STITCH)
        state.ledger.misses += found is not None
    return found


def _spare(state: State, demand: Demand) -> Block | None:
    """Return a free block of a pool that helps out, on the demand's stream."""
    for pool in state.pools.all.values():
        if not pool.use_on_oom or pool.use_count == 0:
            continue
        silos = pool.small if demand.silo.size_class == "small" else pool.large
        silo = silos.get(demand.stream)
        found = None if silo is None else state.fit(silo, demand.need)
        if found is not None:
            return found
    return None


def _borrow(state: State, demand: Demand) -> Block | None:
    """Return a block that is free once the demand's stream has waited for others."""
    for block in state.pending.waiting():
        silo = block.segment.silo
        if silo.pool is demand.silo.pool and silo.size_class == demand.silo.size_class:
            state.pending.order(block, silo.stream)
            state.retire(block)
    found = state.fit(demand.silo, demand.need)
    if found is not None:
        return found
    pool = demand.silo.pool
    silos = pool.small if demand.silo.size_class == "small" else pool.large
    others = [silo for silo in silos.values() if silo is not demand.silo and silo.keys]
    # What is over already is better than what has to be waited for.
    fits = [
        (not state.driver.query_stream(silo.stream), fit.size, fit.address, fit)
        for silo in others
        if (fit := state.fit(silo, demand.need)) is not None
    ]
    if not fits:
        return None
    busy, _, _, best = min(fits, key=lambda fit: fit[:3])
    if busy:
        state.pending.order_streams(demand.stream, best.segment.silo.stream)
    return best
