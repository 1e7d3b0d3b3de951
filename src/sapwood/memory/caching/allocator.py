"""The allocator: memory in blocks, for streams, from pools.

`malloc` and `free` have a short way for what happens almost always: a block of the
default pool, nothing pending, nobody watching. It makes no driver call and touches no
counter. Everything else goes the long way.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

from sapwood.driver.api import Driver, StreamHandle
from sapwood.errors import OutOfMemory
from sapwood.memory.caching import asking, retry, streams, upkeep
from sapwood.memory.caching.block import ALLOCATED, FREE, UNMAPPED, Block
from sapwood.memory.caching.controls import Controls
from sapwood.memory.caching.gate import BUSY
from sapwood.memory.caching.growth import Attempt
from sapwood.memory.caching.records.ledger import JOURNAL_LIMIT
from sapwood.memory.caching.records.stacks import NO_STACK, gather
from sapwood.memory.caching.settings import DEFAULT, Settings
from sapwood.memory.caching.silo import ADDRESS_BITS, ADDRESS_MASK
from sapwood.memory.caching.sizes import GRAIN, LARGEST_SMALL
from sapwood.memory.caching.source import DriverSource, Source
from sapwood.memory.caching.state import Demand, State, outside
from sapwood.units import Addr, Size

__all__ = ["Allocator"]

_GRAIN_MASK: Final = GRAIN - 1


class Allocator(Controls):
    """A caching allocator over one device; thread-safe.

    ``index`` is the device's number in pictures; physical memory comes from
    ``source``, by default from the driver. Sizes are bytes; addresses that it returns
    are multiples of 512. All calls raise `MisuseError` where they are misused, and
    `DriverError` where a device call failed, having done nothing; those that give
    back have done their work even then.
    """

    __slots__ = ("_blocks", "_large", "_small", "_spare", "_uses")

    def __init__(
        self,
        driver: Driver,
        settings: Settings = DEFAULT,
        *,
        index: int = 0,
        source: Source | None = None,
    ) -> None:
        state = State(driver, source or DriverSource(driver), settings)
        super().__init__(state, index)
        self._blocks, self._uses = state.blocks, state.ledger.uses
        # Blocks that were merged into others: a new one costs more than its memory.
        self._spare: list[Block] = []
        self._small, self._large = state.pools.default.small, state.pools.default.large

    # The short way. `_mode` is busy while blocks are changing hands, as a finaliser
    # may run between any two lines; see `_entered`.

    def malloc(self, size: int, stream: StreamHandle) -> Addr:
        """Return memory of ``size`` bytes for work on ``stream``; 0 for none.

        Raises `OutOfMemory`, which says what would have fitted.
        """
        with self._lock:
            need = (size + _GRAIN_MASK) & ~_GRAIN_MASK
            silo = (self._small if need <= LARGEST_SMALL else self._large).get(stream)
            if silo is not None and silo.plain and not self._mode and need > 0:
                self._mode = BUSY
                try:
                    keys, blocks = silo.keys, self._blocks
                    at = bisect_left(keys, need << ADDRESS_BITS)
                    if at < len(keys):
                        block = blocks[keys[at] & ADDRESS_MASK]
                        more = block.size - need
                        if more >= 0:
                            del keys[at]
                            if more:
                                start, home = block.address + need, block.segment
                                spare = self._spare
                                rest = spare.pop() if spare else Block(0, 0, home)
                                rest.size, rest.segment = more, home
                                rest.address = start  # type: ignore[assignment]
                                after = rest.next = block.next
                                rest.prev = block
                                after.prev = block.next = blocks[start] = rest
                                block.size = need
                                if after.state is UNMAPPED:
                                    more += after.size
                                rest.key = key = more << ADDRESS_BITS | start
                                insort(keys, key)
                            block.requested, block.state = size, ALLOCATED
                            self._uses.append((silo, need, size, need))
                            return block.address
                finally:
                    self._mode = self._calm
        return self._malloc(size, stream)

    def free(self, address: Addr) -> None:
        """Give back what `malloc` returned, or 0; also inside finalisers."""
        with self._lock:
            block = (blocks := self._blocks).get(address)
            if (
                block is not None
                and block.state is ALLOCATED
                and block.users is None
                and not self._mode
                and (silo := block.segment.silo).plain
                and len(self._uses) < JOURNAL_LIMIT
            ):
                self._mode = BUSY
                try:
                    keys, size, spare = silo.keys, block.size, self._spare
                    self._uses.append((silo, -size, -block.requested, -size))
                    after = block.next
                    if after.state is FREE:
                        del keys[bisect_left(keys, after.key)], blocks[after.address]
                        size += after.size
                        spare.append(after)
                        after = block.next = after.next
                        after.prev = block
                    block.state, block.requested, block.stack = FREE, 0, NO_STACK
                    before = block.prev
                    if before.state is FREE:
                        del keys[bisect_left(keys, before.key)], blocks[address]
                        size += before.size
                        before.next, after.prev = after, before
                        spare.append(block)
                        block = before
                    block.size = size
                    if after.state is UNMAPPED:
                        size += after.size
                    block.key = key = size << ADDRESS_BITS | block.address
                    insort(keys, key)
                finally:
                    self._mode = self._calm
                return
        self._free(address)

    # The long way.

    def _malloc(self, size: int, stream: StreamHandle) -> Addr:
        if size == 0:
            return Addr(0)
        asking.check_size(size)
        history = self._state.history
        wants = history is not None and history.wants_stack("alloc")
        stack = outside(gather()) if wants else NO_STACK
        with self._entered() as state:
            upkeep.check_open(state)
            demand = asking.demand_of(state, size, stream, stack)
            streams.attend(state)
            first, further = asking.order_of(state, demand)
            address = _serve(state, demand, first)
        if address is None and further:
            # Whoever is asked for memory here may call the allocator.
            asked = [reclaim(demand.need) for reclaim in tuple(self._reclaimers)]
            address = self._serve_further(demand, further[0 if any(asked) else 1 :])
        if address is None:
            raise self._shortage(demand)
        return address

    def _serve_further(self, demand: Demand, attempts: asking.Order) -> Addr | None:
        for attempt in attempts:
            with self._entered() as state:
                waits = retry.waits(state, attempt, demand)
            self._wait(waits)
            with self._entered() as state:
                address = _serve(state, demand, (attempt,))
            if address is not None:
                return address
        return None

    def _shortage(self, demand: Demand) -> OutOfMemory:
        with self._entered() as state:
            error, free = asking.refusal(state, demand, self.index)
            limit = state.limit
        for observer in tuple(self._observers):
            observer(self.index, demand.size, limit, free)
        return error

    def _free(self, address: Addr) -> None:
        if address == 0:
            return
        with self._lock:
            block = streams.held(self._state, address)
            if self._mode != BUSY:
                with self._entered() as state:
                    streams.give(state, block)
            elif not self._put_off(block):
                raise streams.freed_twice(address)

    def record_stream(self, address: Addr, stream: StreamHandle) -> None:
        """Say that work on ``stream``, given to it until the free, uses a block.

        ``address`` may lie inside the block: a view protects all of it. On the
        block's own stream, and for 0, nothing happens.
        """
        if address:
            with self._entered() as state:
                streams.use(state, streams.block_around(state, address), stream)

    def forget_stream(self, stream: StreamHandle, heir: StreamHandle) -> None:
        """Hand a destroyed stream's blocks on to ``heir``, ordered after it."""
        with self._entered() as state:
            streams.bequeath(state, stream, heir)

    def usable_size(self, address: Addr) -> Size:
        """Return how large the block at an address is, at least what was asked for."""
        with self._entered() as state:
            return Size(streams.held(state, address).size)


def _serve(state: State, demand: Demand, attempts: tuple[Attempt, ...]) -> Addr | None:
    for attempt in attempts:
        block = retry.perform(state, attempt, demand)
        if block is not None:
            return state.take(block, demand)
    return None
