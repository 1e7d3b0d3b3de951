"""The caching allocator of pinned host memory.

A block is reused when the copies that used it are over, which is asked and never
waited for. `PinnedAllocator.free` may be called anywhere, by finalisers too: it waits
for no lock. The system is asked for memory, and given some back, outside the lock.
"""

from __future__ import annotations

import ctypes
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Any

from sapwood.allocator.caching.picture import PoolId
from sapwood.allocator.caching.records.statistics import flat
from sapwood.allocator.caching.settings import DEFAULT, Settings, settings_of
from sapwood.allocator.checks import check_address, check_size, check_stream
from sapwood.allocator.pinned.intake import Intake
from sapwood.allocator.pinned.sources import Registered, Source
from sapwood.allocator.pinned.stock import (
    Block,
    Kind,
    Pool,
    Request,
    Segment,
    Stock,
    planned,
)
from sapwood.allocator.pinned.worker import Worker
from sapwood.driver.api import CaptureStatus, Driver, StreamHandle, check_driver
from sapwood.driver.release import Release
from sapwood.driver.results import Result
from sapwood.errors import DriverError, MisuseError, OutOfMemory
from sapwood.units import Addr, Size, align_up, hex_address, size_text

_RESERVE_STEP = 4096


def _warn(error: DriverError) -> None:
    warnings.warn(f"pinned memory: {error}", RuntimeWarning, stacklevel=3)


class PinnedAllocator:
    """Pinned memory of one driver, cached; all calls may be made by several threads.

    Of the settings, which may be text, those named ``pinned_`` matter. Requests become
    powers of two, which are kept and found by size; above
    ``pinned_max_round_threshold`` they are cut, exact to 512 bytes, from segments, of
    which idle ones are kept up to ``pinned_max_cached_size`` bytes. ``report`` is told
    of errors that nobody waits for; it warns. Close it before its driver.
    """

    def __init__(
        self,
        driver: Driver,
        settings: str | Settings = DEFAULT,
        *,
        report: Callable[[DriverError], None] = _warn,
    ) -> None:
        check_driver(driver)
        self._driver, self._report = driver, report
        self._settings = settings = settings_of(settings)
        self._source = _source(driver, settings)
        self._stock = Stock()
        self._intake = Intake(driver, self._stock, settings.pinned_max_cached_size)
        self._lock = self._intake.lock
        self._worker = Worker()
        self._reserved = False

    # Allocation.

    def malloc(self, size: int) -> Addr:
        """Return the address of ``size`` bytes; `Addr(0)` for none.

        Raises `OutOfMemory`, `MisuseError` for a size that cannot be, and
        `DriverError` where the device fails.
        """
        self._check_open()
        check_size(size)
        size = operator.index(size)
        if size == 0:
            return Addr(0)
        request = planned(size, self._settings)
        self._intake.poll()
        with self._lock:
            pool = self._stock.pool()
            block = self._stock.take(pool, request)
        if block is None:
            block = self._grow(pool, request)
        try:
            self._intake.settle()
        except DriverError as error:  # of what others freed: the block is good
            self._report(error)
        return block.address

    def free(self, address: Addr) -> None:
        """Give a block back, where it begins; `Addr(0)` is none.

        Raises `MisuseError` where no block begins, and `DriverError` where the device
        cannot mark the copies that use it: it is given back all the same, and reused
        after the whole device was waited for. With ``pinned_free_catch_all`` that is
        reported instead.
        """
        check_address(address)
        if not address:
            return
        block = self._stock.live.pop(address, None)
        if block is None:
            with self._lock:
                raise MisuseError(self._what_is_at(address))
        try:
            self._intake.let_go(block)
        except DriverError as error:
            if not self._settings.pinned_free_catch_all:
                raise
            self._report(error)
        self._worker.wake()

    def record_use(self, address: Addr, stream: StreamHandle) -> None:
        """Keep a block from being reused until the stream's work so far is done.

        ``address`` may lie inside the block. Call it after giving the copy to the
        stream. Where the stream is capturing, the block is kept for the replays:
        until the pool that the thread is routed to is released, or else until the end.
        Raises `MisuseError` for an address in no block.
        """
        check_address(address)
        check_stream(stream)
        if not address:
            return
        recorded = self._driver.capture_status(stream) is not CaptureStatus.NONE
        with self._lock:
            self._stock.use(self._around(address), stream, recorded=recorded)
        if self._has_worker():
            self._worker.start(self)
            if not self._has_worker():  # ended or configured meanwhile
                self._worker.stop()

    def forget_stream(self, stream: StreamHandle, successor: StreamHandle) -> None:
        """Let copies on a stream that ends count as those of one that follows it."""
        with self._lock:
            self._stock.forget(stream, successor)
        self._intake.forget(stream, successor)

    def owns(self, address: Addr) -> bool:
        """Return whether an address lies in a block that is handed out."""
        with self._lock:
            return self._stock.containing(address) is not None

    def usable_size(self, address: Addr) -> Size:
        """Return the bytes from an address to the end of its block.

        Raises `MisuseError` for an address in no block.
        """
        with self._lock:
            block = self._around(address)
        return Size(block.end - address)

    def view(self, address: Addr) -> memoryview:
        """Return the bytes that were asked for where a block begins, to be written.

        Not to be used after the block is freed. Raises `MisuseError` where none begins.
        """
        with self._lock:
            block = self._around(address)
            if block.address != address:
                raise MisuseError(self._what_is_at(address))
        whole = (ctypes.c_ubyte * block.requested).from_address(address)
        return memoryview(whole).cast("B")

    # Pools.

    def begin(self, pool: PoolId) -> None:
        """Let this thread allocate from a pool, made if need be, until `end`.

        Each begin is one use of the pool, and wants one `release_pool`. Raises
        `MisuseError` for the default pool, or where that is so already.
        """
        with self._lock:
            self._check_open()
            self._stock.pools.begin(pool)

    def end(self, pool: PoolId) -> None:
        """End what this thread began last; raises `MisuseError` for another pool."""
        with self._lock:
            self._stock.pools.end(pool)

    @contextmanager
    def using(self, pool: PoolId) -> Iterator[None]:
        """``with allocator.using(pool):`` this thread allocates from it."""
        self.begin(pool)
        try:
            yield
        finally:
            self.end(pool)

    def release_pool(
        self, pool: PoolId, *, after: Iterable[StreamHandle] | None = None
    ) -> None:
        """End one use of a pool; with the last, its blocks are anybody's.

        What was captured may still run on the streams ``after``; without them the
        device is waited for, if anything was. Raises `MisuseError` where there is no
        such pool, or a thread is routed to it.
        """
        with Release() as release:
            with self._lock:
                last = self._stock.pools.is_last_use(pool)
                surplus = self._intake.absorb()
                running = last and after is None and self._stock.is_recorded(pool)
            release(self._intake.give, surplus)
            if running:
                self._driver.synchronize()
            with self._lock:
                surplus = self._intake.absorb()
                loose = self._stock.release(pool, tuple(after or ()))
            release(self._intake.give, surplus)
            release.each(self._intake.let_go, loose)

    # Upkeep.

    @property
    def settings(self) -> Settings:
        """What it goes by."""
        return self._settings

    def configure(self, settings: str | Settings) -> None:
        """Go by other settings from now on; memory that there is stays as it is."""
        settings = settings_of(settings)
        self._source = _source(self._driver, settings)
        self._settings = settings
        self._intake.bound = settings.pinned_max_cached_size
        if not self._has_worker():
            self._worker.stop()

    def empty_cache(self) -> Size:
        """Give idle segments of the default pool back; return how many bytes.

        CUDA waits for the device before it takes memory back. Else nothing is waited
        for, unless the device failed to mark a copy before.
        """
        if self._intake.stranded:
            self._intake.wait()
        self._intake.poll()
        return self._intake.evict()

    def look_after(self) -> bool:
        """Reuse what is free now; return whether there will be more."""
        try:
            self._intake.poll()
        except DriverError as error:
            self._report(error)
        return self._intake.is_waiting()

    def memory_stats(self) -> dict[str, int]:
        """Return the counters under PyTorch's names: ``active_bytes.current``."""
        return flat(self.nested_memory_stats())

    def nested_memory_stats(self) -> dict[str, Any]:
        """Return the counters by family."""
        with self._lock:
            return self._stock.statistics.nested()

    def reset_peaks(self) -> None:
        """Let every peak begin anew, at what is now."""
        with self._lock:
            self._stock.statistics.reset_peaks()

    def reset_accumulated(self) -> None:
        """Forget what is summed up since the beginning."""
        with self._lock:
            self._stock.statistics.reset_accumulated()

    def close(self) -> None:
        """Wait for copies, and give all back that nobody holds; the rest when freed.

        What only recordings use goes, too. Closing again does nothing.
        """
        if not self._intake.closed:
            with Release() as release:
                release(self._worker.stop)
                release(self._intake.close)
                release(self._worker.stop)  # of one that began in between

    def _has_worker(self) -> bool:
        return self._settings.pinned_use_background_threads and not self._intake.closed

    def _check_open(self) -> None:
        if self._intake.closed:
            raise MisuseError(
                "this allocator of pinned memory is closed: make a new one"
            )

    def _around(self, address: Addr) -> Block:
        """Return the block that an address lies in, under the lock, or raise."""
        block = self._stock.containing(address)
        if block is None:
            raise MisuseError(self._what_is_at(address))
        return block

    def _what_is_at(self, address: Addr) -> str:
        inside, segments = self._stock.containing(address), self._stock.segments
        ours = any(s.address <= address < s.address + s.size for s in segments)
        where = hex_address(address)
        if inside is not None:
            return (
                f"{where} lies inside the pinned block of {inside.requested} bytes at "
                f"{hex_address(inside.address)}: give that"
            )
        if ours:
            return (
                f"{where} was freed already: free each block once, after its last use"
            )
        return f"{where} is no pinned memory of this allocator: give what malloc gave"

    # Growth.

    def _grow(self, pool: Pool, request: Request) -> Block:
        """Return a block of a new segment, or what can be had where there is none."""
        self._reserve(pool)
        intake = self._intake
        # What comes back is asked for before it is evicted: it may be what is wanted.
        for relieve in (intake.poll, intake.evict, intake.wait, intake.evict):
            with suppress(OutOfMemory):
                return self._attempt(pool, request)
            relieve()
        return self._attempt(pool, request)

    def _attempt(self, pool: Pool, request: Request) -> Block:
        with self._lock:
            block = self._stock.take(pool, request)
        if block is not None:
            return block
        try:
            return self._open(request.segment, request.kind, pool, request)
        except DriverError as error:
            if error.name == Result.OUT_OF_MEMORY.name:
                raise self._shortage(pool, request) from error
            raise

    def _reserve(self, pool: Pool) -> None:
        """Get the segment that blocks are cut from first, once, where one is wanted."""
        size = self._settings.pinned_reserve_segment_size
        with self._lock:
            if size is None or self._reserved or pool is not self._stock.pools.default:
                return
            self._reserved = True
        try:
            self._open(Size(align_up(size, _RESERVE_STEP)), "reserve", pool, None)
        except DriverError:
            self._reserved = False
            raise

    def _open(
        self, size: Size, kind: Kind, pool: Pool, request: Request | None
    ) -> Block:
        """Get a segment; return its first block, handed out if there is a request."""
        source, began = self._source, perf_counter()
        segment = Segment(source.take(size), size, kind, source, pool.id)
        spent = perf_counter() - began
        with self._lock:
            return self._stock.begin(segment, request, spent)

    def _shortage(self, pool: Pool, request: Request) -> OutOfMemory:
        with self._lock:
            used = self._stock.statistics.counts["active_bytes"].current
            cached = [block.size for block in pool]
        helps = "Free blocks that nobody needs, or ask" if used else "Ask"
        return OutOfMemory(
            "allocate_host",
            asked=request.segment,
            free=sum(cached),
            largest=max(cached, default=0),
            holders=(("pinned blocks in use", used),) if used else (),
            shortage=(
                f"asked for {size_text(request.segment)} of pinned memory, and the "
                f"system gives no more; {size_text(used)} of it are in use here, and "
                f"{size_text(sum(cached))} cached. {helps} for less at once"
            ),
        )


def _source(driver: Driver, settings: Settings) -> Source:
    if settings.pinned_use_cuda_host_register:
        return Registered(driver, settings.pinned_num_register_threads)
    return Source(driver)
