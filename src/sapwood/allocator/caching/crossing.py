"""Blocks of other streams, which serve once the device has ordered their uses.

Blocks that wait for other streams are free to their own as soon as that has waited,
and free blocks of one stream to another. What is over already is better than what
has to be waited for.
"""

from __future__ import annotations

from collections.abc import Collection

from sapwood.allocator.caching.bins import Bin
from sapwood.allocator.caching.block import Block
from sapwood.allocator.caching.events import order
from sapwood.allocator.caching.pending import Claim
from sapwood.allocator.caching.state import Demand, State
from sapwood.driver.api import Driver, EventHandle, StreamHandle
from sapwood.units import Addr


class Ordering:
    """An errand: streams wait, on the device, for the uses of their pending blocks.

    These are free afterwards, as far as it was done.
    """

    def __init__(self, claims: list[Claim], spare: list[EventHandle]) -> None:
        self._claims, self._spare = claims, spare
        self._done: list[Claim] = []

    def perform(self, driver: Driver) -> None:
        """Make the waits."""
        for claim in self._claims:
            own = claim.block.segment.bin.stream
            for mark in claim.marks:
                driver.wait_event(own, mark.event)
            for user in claim.streams:
                if user != own and user >= 0:
                    order(driver, self._spare, own, user)
            self._done.append(claim)

    def commit(self, state: State) -> None:
        """Let the blocks be free whose uses are ordered."""
        for claim in self._claims:
            if claim in self._done:
                state.pending.settle(claim)
                state.retire(claim.block)
            else:
                state.pending.renounce(claim)
        state.pending.events.take_back(self._spare)


def ordering(state: State, demand: Demand) -> Ordering:
    """Decide to order what blocks of the demand's pool and class wait for."""
    pool, size_class = demand.bin.pool, demand.bin.size_class
    claims = [
        state.pending.claim(block)
        for block in state.pending.waiting()
        if block.segment.bin.pool is pool and block.segment.bin.size_class == size_class
    ]
    return Ordering(claims, state.pending.events.lend(1))


class Lending:
    """An errand: a stream waits, on the device, for the one whose block it has."""

    def __init__(
        self,
        block: Block | None,
        demand: Demand,
        earlier: StreamHandle,
        spare: list[EventHandle],
    ) -> None:
        self._block, self._demand = block, demand
        self._earlier, self._spare = earlier, spare
        self._done = False

    @property
    def address(self) -> Addr | None:
        """The address of the block; None where there is none."""
        return self._block.address if self._block is not None else None

    def perform(self, driver: Driver) -> None:
        """Make the wait, if there is anything to wait for."""
        if self._block is not None and not driver.query_stream(self._earlier):
            order(driver, self._spare, self._demand.stream, self._earlier)
        self._done = True

    def commit(self, state: State) -> None:
        """Take the block back where that failed: nobody has used it."""
        state.pending.events.take_back(self._spare)
        if self._block is not None and not self._done:
            self._block.users = None
            state.give(self._block)


def others(demand: Demand) -> list[Bin]:
    """Return the bins of other streams that a demand may borrow from."""
    pool = demand.bin.pool
    bins = pool.small if demand.bin.size_class == "small" else pool.large
    others = [bin_ for bin_ in bins.values() if bin_ is not demand.bin]
    return [bin_ for bin_ in others if not bin_.is_empty()]


def lending(state: State, demand: Demand, over: Collection[StreamHandle]) -> Lending:
    """Decide to take the best block for a demand, of its own stream or another.

    ``over`` are streams without work, as was seen.
    """
    own = state.fit(demand.bin, demand.need)
    found = {} if own is None else {own: (False, own.size, own.address)}
    if own is None:
        for bin_ in others(demand):
            fit = state.fit(bin_, demand.need)
            if fit is not None:
                found[fit] = (bin_.stream not in over, fit.size, fit.address)
    best = min(found, key=found.__getitem__, default=None)
    if best is None:
        return Lending(None, demand, demand.stream, [])
    earlier = best.segment.bin.stream
    state.take(best, demand)
    if earlier == demand.stream:
        return Lending(best, demand, earlier, [])
    return Lending(best, demand, earlier, state.pending.events.lend(1))
