"""What comes back to an allocator of pinned memory, and what goes back to the system.

Freed blocks are queued without waiting for the lock; whoever has it next takes them in.
Device calls are made outside the lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from time import perf_counter

from sapwood.allocator.pinned.block import Block, Segment
from sapwood.allocator.pinned.pending import Pending
from sapwood.allocator.pinned.stock import Stock
from sapwood.driver.api import Driver
from sapwood.driver.release import Release
from sapwood.units import Size

__all__ = ["Intake"]


class Intake:
    """The way back into a stock, guarded by ``lock``.

    ``bound`` are the most idle bytes that are kept; None: all.
    """

    def __init__(self, driver: Driver, stock: Stock, bound: Size | None) -> None:
        self._driver, self._stock, self.bound = driver, stock, bound
        self.lock = threading.Lock()
        self.pending = Pending(driver)
        self.closed = False
        self._returned = deque[Block]()

    def let_go(self, block: Block) -> None:
        """Let a block that nobody holds be reused when nothing uses it.

        Raises `DriverError`, when that is done, where the device reports one.
        """
        if not block.users or block.captured:
            self._returned.append(block)
            self.settle()
        elif not self.closed:
            self.pending.add(block)
        else:
            with Release() as release:
                for stream in block.users:
                    release(self._driver.synchronize_stream, stream)
                self._returned.append(block)
                release(self.settle)

    def poll(self) -> None:
        """Take in what is free by now."""
        if self.pending:
            self._returned += self.pending.poll()
        self.settle()

    def wait(self) -> None:
        """Wait for the copies that use freed blocks, and take these in."""
        self._returned += self.pending.wait()
        self.settle()

    def settle(self) -> None:
        """Take in what came back, unless somebody has the lock, who will."""
        while self._returned and self.lock.acquire(blocking=False):
            try:
                surplus = self.absorb()
            finally:
                self.lock.release()
            self.give(surplus)

    def absorb(self) -> list[Segment]:
        """Take in what came back, under the lock; return what is too much to keep."""
        surplus: list[Segment] = []
        while self._returned:
            surplus += self._stock.put(self._returned.popleft(), self.bound)
        return [*surplus, *self._stock.close()] if self.closed else surplus

    def give(self, segments: Iterable[Segment]) -> Size:
        """Give segments that are in nobody's cache to the system; return their bytes.

        Raises `DriverError`, when all are given, where the device reported one.
        """
        size = 0
        with Release() as release:
            for segment in segments:
                began = perf_counter()
                release(segment.source.give, segment.address)
                spent = perf_counter() - began
                with self.lock:
                    self._stock.end(segment, spent)
                size += segment.size
        return Size(size)

    def evict(self) -> Size:
        """Give idle segments of the default pool back; return how many bytes."""
        with self.lock:
            idle = self._stock.evict()
        return self.give(idle)

    def close(self) -> None:
        """Wait for all work, and give back whatever nobody holds, now and later."""
        self.closed = True
        with Release() as release:
            release(self._driver.synchronize)
            release(self.wait)
            self._returned += self.pending.abandon()
            with self.lock:
                rest = self.absorb()
            release(self.give, rest)
            release(self.pending.close)
