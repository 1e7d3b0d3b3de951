"""What comes back to an allocator of pinned memory, and what goes back to the system.

Freed blocks are queued without waiting for the lock; whoever has it next takes them in.
Device calls are made outside the lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from time import perf_counter
from typing import TypeVar

from sapwood.allocator.caching.pending import Pending, Use, record
from sapwood.allocator.pinned.stock import Block, Segment, Stock
from sapwood.driver.api import CaptureStatus, Driver, EventHandle, StreamHandle
from sapwood.driver.release import Release
from sapwood.errors import DriverError
from sapwood.units import Size

T = TypeVar("T")


class Intake:
    """The way back into a stock, guarded by ``lock``.

    Freed blocks wait in the books for the copies that use them; whoever has the turn
    asks about these. What is ``stranded`` is free only when the whole device was waited
    for. ``bound`` are the most idle bytes that are kept; None: all.
    """

    def __init__(self, driver: Driver, stock: Stock, bound: Size | None) -> None:
        self._driver, self._stock, self.bound = driver, stock, bound
        self.lock = threading.Lock()
        self.closed = False
        self._returned = deque[Block]()
        self.stranded = deque[Block]()
        # What was freed without the turn; whoever has it enters these in the books.
        self._new = deque[list[Use[Block]]]()
        self._turn = threading.Lock()
        self._books = Pending[Block]()

    def is_waiting(self) -> bool:
        """Return whether anything may become free by itself."""
        return bool(self._new or self._books)

    def let_go(self, block: Block) -> None:
        """Let a block that nobody holds be reused when nothing uses it.

        Raises `DriverError`, when that is done, where the device reports one.
        """
        if not block.users or block.captured:
            self._returned.append(block)
            self.settle()
        elif not self.closed:
            self._await(block)
        else:
            with Release() as release:
                release.each(self._driver.synchronize_stream, block.users)
                self._returned.append(block)
                release(self.settle)

    def poll(self) -> None:
        """Take in what is free by now, without waiting.

        Raises `DriverError` where the device cannot say; that block is stranded.
        """
        try:
            if self.is_waiting() and self._turn.acquire(blocking=False):
                try:
                    self._enter()
                    self._advance()
                finally:
                    self._turn.release()
        finally:
            self.settle()

    def wait(self) -> None:
        """Wait for the copies that use freed blocks, and take these in.

        Blocks whose streams capture stay. Raises `DriverError` where waiting fails.
        """
        with self._turn:
            if self.stranded:
                self._driver.synchronize()
                self._returned += _drained(self.stranded)
            self._enter()
            for queue in self._books.queues():
                for use in reversed(queue):
                    if use.event is not None:
                        self._driver.synchronize_event(use.event)
                        break
            self._advance()
        self.settle()

    def forget(self, stream: StreamHandle, successor: StreamHandle) -> None:
        """Let what waits for a stream's capture wait for its successor."""
        with self._turn:
            self._enter()
            self._books.rename(stream, successor)

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
            idle = self._stock.pools.default.evict()
        return self.give(idle)

    def close(self) -> None:
        """Wait for all work, and give back whatever nobody holds, now and later."""
        self.closed = True
        with Release() as release:
            release(self._driver.synchronize)
            release(self.wait)
            with self._turn:
                self._enter()
                self._books.end(self._books.marked())
                self._returned += self._books.take_ready()
                self._returned += _drained(self.stranded)
            with self.lock:
                rest = self.absorb()
            release(self.give, rest)
            spare, self._books.spare = self._books.spare, []
            release.each(self._driver.destroy_event, spare)

    def _await(self, block: Block) -> None:
        """Let a block wait for all its users; raises `DriverError`, having done so."""
        uses = [Use(block, stream) for stream in block.users]
        block.users = set()
        try:
            for use in uses:
                use.event = self._mark(use.stream)
        except DriverError:
            self._books.spare += [use.event for use in uses if use.event is not None]
            self.stranded.append(block)
            raise
        self._new.append(uses)

    def _mark(self, stream: StreamHandle) -> EventHandle | None:
        """Return an event after the stream's work so far; None while it captures."""
        if self._driver.capture_status(stream) is not CaptureStatus.NONE:
            return None
        return record(self._driver, stream, self._books.spare)

    def _enter(self) -> None:
        for uses in _drained(self._new):
            self._books.begin(uses)

    def _advance(self) -> None:
        for queue in self._books.queues():
            while queue and self._is_done(queue[0]):
                self._books.end([queue[0]])
        self._returned += self._books.take_ready()

    def _is_done(self, use: Use[Block]) -> bool:
        try:
            if use.event is None:
                use.event = self._mark(use.stream)
            return use.event is not None and self._driver.query_event(use.event)
        except DriverError:
            self._returned += self._books.take_ready()
            self._books.forget(use.block)
            self.stranded += self._books.take_ready()
            raise


def _drained(queue: deque[T]) -> list[T]:
    """Take out what is in a queue, to which other threads may append."""
    found: list[T] = []
    with suppress(IndexError):
        while queue:
            found.append(queue.popleft())
    return found
