"""Serving a demand that the silo's free blocks may not serve at once: the decisions."""

from __future__ import annotations

from sapwood.allocator.caching import relief
from sapwood.allocator.caching.block import Block
from sapwood.allocator.caching.growth import Attempt
from sapwood.allocator.caching.leaving import Chosen
from sapwood.allocator.caching.state import Demand, State

__all__ = ["given_up", "ready"]


def given_up(state: State, attempt: Attempt, demand: Demand) -> Chosen:
    """Return what is given back for an attempt, before it grows."""
    if attempt is Attempt.COLLECT:
        return relief.idle(state)
    if attempt is Attempt.OWN:
        return relief.cached(state, [demand.silo])
    if attempt is Attempt.OTHERS:
        return relief.cached(state, relief.freeable(state))
    return {}


def ready(state: State, attempt: Attempt, demand: Demand) -> Block | None:
    """Return the free block by which an attempt serves a demand without growing."""
    if attempt is Attempt.SPARE:
        return _spare(state, demand)
    if attempt is Attempt.GROW:
        return None
    return state.fit(demand.silo, demand.need)


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
