"""The allocator: memory in blocks, for streams, from pools.

`malloc` and `free` have a short way for what happens almost always: a block of the
default pool, nothing pending, nobody watching. It makes no driver call and touches no
counter. Everything else goes the long way.
"""

from __future__ import annotations

from typing import Final

from sapwood.allocator.caching import asking, streams, upkeep
from sapwood.allocator.caching.block import ALLOCATED, Block
from sapwood.allocator.caching.gate import BUSY
from sapwood.allocator.caching.records.history import NO_STACK, gather
from sapwood.allocator.caching.records.ledger import JOURNAL_LIMIT
from sapwood.allocator.caching.serving import Serving
from sapwood.allocator.caching.settings import DEFAULT, Settings, settings_of
from sapwood.allocator.caching.sizes import GRAIN, LARGEST_SMALL
from sapwood.allocator.caching.source import DriverSource, Source
from sapwood.allocator.caching.state import State, outside
from sapwood.allocator.caching.waits import marking
from sapwood.allocator.checks import check_address, check_size, check_stream
from sapwood.driver.api import Driver, StreamHandle, check_driver
from sapwood.units import Addr, Size

_GRAIN_MASK: Final = GRAIN - 1


class Allocator(Serving):
    """A caching allocator over one device; thread-safe.

    ``settings`` may be text in PyTorch's spelling. ``index`` is the device's number
    in pictures; physical memory comes from
    ``source``, by default from the driver. Sizes are bytes; addresses that it returns
    are multiples of 512. All calls raise `MisuseError` where they are misused, and
    `DriverError` where a device call failed, having done nothing; those that give
    back have done their work even then.
    """

    __slots__ = (
        "_acquire",
        "_blocks",
        "_large",
        "_release",
        "_small",
        "_spare",
        "_uses",
    )

    def __init__(
        self,
        driver: Driver,
        settings: str | Settings = DEFAULT,
        *,
        index: int = 0,
        source: Source | None = None,
    ) -> None:
        check_driver(driver)
        known = settings_of(settings)
        state = State(driver, source or DriverSource(driver), known)
        super().__init__(state, index)
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self._blocks, self._uses = state.blocks, state.ledger.uses
        # Blocks that were merged into others: a new one costs more than its memory.
        self._spare: list[Block] = []
        self._small, self._large = state.pools.default.small, state.pools.default.large

    # The short way. `_mode` is busy while blocks are changing hands, as a finaliser
    # may run between any two lines; see `_entered`. A `with` of the lock takes twice as
    # long as its two methods.

    def malloc(self, size: int, stream: StreamHandle) -> Addr:
        """Return memory of ``size`` bytes for work on ``stream``; 0 for none.

        Raises `OutOfMemory`, which says what would have fitted.
        """
        block = None
        try:
            self._acquire()
            need = (size + _GRAIN_MASK) & ~_GRAIN_MASK
            bin_ = (self._small if need <= LARGEST_SMALL else self._large).get(stream)
            if bin_ is not None and bin_.plain and not self._mode and need > 0:
                self._mode = BUSY
                try:
                    block = bin_.cut(need, size, self._blocks, self._spare)
                    if block is not None:
                        self._uses += ((bin_, need, size, need),)
                finally:
                    self._mode = self._calm
        except BaseException:
            # No function of Python's may be called: there may be no room on the stack.
            try:  # noqa: SIM105
                self._release()
            except RuntimeError:  # the wait for it is what was interrupted
                pass
            check_size(size)
            check_stream(stream)
            raise
        self._release()
        return self._malloc(size, stream) if block is None else block.address

    def free(self, address: Addr) -> None:
        """Give back what `malloc` returned, or 0; also inside finalisers."""
        size = 0
        try:
            self._acquire()
            block = (blocks := self._blocks).get(address)
            if (
                block is not None
                and block.state is ALLOCATED
                and block.users is None
                and not self._mode
                and (bin_ := block.segment.bin).plain
                and len(self._uses) < JOURNAL_LIMIT
            ):
                self._mode = BUSY
                try:
                    less, asked = -block.size, -block.requested
                    bin_.join(block, blocks, self._spare)
                    size = less
                    self._uses += ((bin_, size, asked, size),)
                finally:
                    self._mode = self._calm
        except BaseException:
            try:  # noqa: SIM105 - as in `malloc`
                self._release()
            except RuntimeError:
                pass
            check_address(address)
            raise
        self._release()
        if not size:
            self._free(address)

    # The long way.

    def _malloc(self, size: int, stream: StreamHandle) -> Addr:
        check_size(size)
        check_stream(stream)
        size = asking.checked_size(size)
        if size == 0:
            return Addr(0)
        history = self._state.history
        wants = history is not None and history.wants_stack("alloc")
        stack = outside(gather()) if wants else NO_STACK
        try:
            self._attend()
            with self._entered(quiet=self._look(stream)) as state:
                upkeep.check_open(state)
                demand = asking.demand_of(state, size, stream, stack)
                first, further = asking.order_of(state, demand)
                block = state.fit(demand.bin, demand.need)
                if block is not None:
                    return state.take(block, demand)
            address = self._serve(demand, first[1:])
            if address is None and further:
                # Whoever is asked for memory here may call the allocator.
                asked = [reclaim(demand.need) for reclaim in tuple(self._reclaimers)]
                address = self._serve(demand, further[0 if any(asked) else 1 :])
            if address is None:
                raise self._shortage(demand)
        finally:
            self._tidy()
        return address

    def _free(self, address: Addr) -> None:
        check_address(address)
        if address == 0:
            return
        if self._is_inside():
            if not self._put_off(streams.held(self._state, address)):
                raise streams.freed_twice(address)
            return
        try:
            errand = None
            with self._entered(quiet=self._look()) as state:
                block = streams.held(state, address)
                state.give(block)
                if block in streams.unmarked(state):
                    errand = self._launched(marking(state, [block]))
            if errand is not None:
                self._see_through(errand)
        finally:
            self._tidy()

    def record_stream(self, address: Addr, stream: StreamHandle) -> None:
        """Say that work on ``stream``, given to it until the free, uses a block.

        ``address`` may lie inside the block: a view protects all of it. On the
        block's own stream, and for 0, nothing happens.
        """
        check_address(address)
        check_stream(stream)
        if address:
            with self._entered(quiet=self._look(stream)) as state:
                streams.use(state, streams.block_around(state, address), stream)

    def forget_stream(self, stream: StreamHandle, heir: StreamHandle) -> None:
        """Hand a destroyed stream's blocks on to ``heir``, ordered after it."""
        for each in (stream, heir):
            check_stream(each)
        with self._entered(alone=True) as state:
            streams.bequeath(state, stream, heir)

    def usable_size(self, address: Addr) -> Size:
        """Return how large the block at an address is, at least what was asked for."""
        with self._entered() as state:
            return Size(streams.held(state, address).size)
