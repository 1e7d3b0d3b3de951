"""What comes back to an allocator of pinned memory, and what goes back to the system.

Freed blocks are queued without waiting for the lock; whoever has it next takes them in.
Device calls are made outside the lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

from sapwood.allocator.caching.pending import record
from sapwood.allocator.pinned.stock import Block, Segment, Stock
from sapwood.driver.api import CaptureStatus, Driver, EventHandle, StreamHandle
from sapwood.driver.release import Release
from sapwood.errors import DriverError
from sapwood.units import Size

T = TypeVar("T")


@dataclass(slots=True)
class _Freed:
    block: Block
    waits: int  # below 0: it is stranded, and these no longer matter


@dataclass(slots=True)
class _Wait:
    freed: _Freed
    event: EventHandle | None  # None: not before the stream's capture has ended


class Pending:
    """The blocks of one device that are freed and not free; then they are ``ready``.

    What is ``stranded`` is free only when the whole device was waited for.
    """

    def __init__(self, driver: Driver, ready: deque[Block]) -> None:
        self._driver, self._ready = driver, ready
        self.stranded: deque[Block] = deque()
        self._turn = threading.Lock()
        self._new: deque[tuple[StreamHandle, _Wait]] = deque()
        self._queues: dict[StreamHandle, deque[_Wait]] = {}
        self._spare: deque[EventHandle] = deque()

    def __bool__(self) -> bool:
        """Whether anything may become ready by itself."""
        return bool(self._new or self._queues)

    def add(self, block: Block) -> None:
        """Let a block wait for all its users; raises `DriverError`, having done so."""
        streams, block.users = block.users, set()
        freed = _Freed(block, len(streams))
        waits: list[tuple[StreamHandle, _Wait]] = []
        try:
            for stream in streams:
                event = self._mark(stream)
                waits.append((stream, _Wait(freed, event)))
        except DriverError:
            self._spare += [wait.event for _, wait in waits if wait.event is not None]
            self.stranded.append(block)
            raise
        self._new += waits

    def poll(self) -> None:
        """Find the blocks that are free now, without waiting.

        Raises `DriverError` where the device cannot say; that block is stranded.
        """
        if self and self._turn.acquire(blocking=False):
            try:
                self._sort()
                self._advance()
            finally:
                self._turn.release()

    def wait(self) -> None:
        """Wait for the copies that use blocks: all are free then.

        Blocks whose streams capture stay. Raises `DriverError` where waiting fails.
        """
        with self._turn:
            if self.stranded:
                self._driver.synchronize()
                self._ready += _drained(self.stranded)
            self._sort()
            for queue in self._queues.values():
                for wait in reversed(queue):
                    if wait.event is not None:
                        self._driver.synchronize_event(wait.event)
                        break
            self._advance()

    def abandon(self) -> None:
        """Let all blocks that are left be free: the device is done with."""
        with self._turn:
            self._sort()
            for queue in self._queues.values():
                for wait in queue:
                    self._strand(wait)
            self._queues.clear()
            self._ready += _drained(self.stranded)

    def forget(self, stream: StreamHandle, successor: StreamHandle) -> None:
        """Let what waits for a stream's capture wait for its successor."""
        with self._turn:
            self._sort()
            for wait in self._queues.pop(stream, ()):
                self._queues.setdefault(successor, deque()).append(wait)

    def close(self) -> None:
        """Destroy the events that nobody waits for."""
        with Release() as release:
            for event in _drained(self._spare):
                release(self._driver.destroy_event, event)

    def _mark(self, stream: StreamHandle) -> EventHandle | None:
        """Return an event after the stream's work so far; None while it captures."""
        if self._driver.capture_status(stream) is not CaptureStatus.NONE:
            return None
        return record(self._driver, stream, self._spare)

    def _sort(self) -> None:
        for stream, wait in _drained(self._new):
            self._queues.setdefault(stream, deque()).append(wait)

    def _advance(self) -> None:
        for stream, queue in list(self._queues.items()):
            while queue and self._is_done(stream, queue):
                self._finish(queue.popleft())
            if not queue:
                del self._queues[stream]

    def _is_done(self, stream: StreamHandle, queue: deque[_Wait]) -> bool:
        wait = queue[0]
        try:
            if wait.event is None:
                wait.event = self._mark(stream)
            return wait.event is not None and self._driver.query_event(wait.event)
        except DriverError:
            self._strand(queue.popleft())
            raise

    def _finish(self, wait: _Wait) -> None:
        if wait.event is not None:
            self._spare.append(wait.event)
        wait.freed.waits -= 1
        if not wait.freed.waits:
            self._ready.append(wait.freed.block)

    def _strand(self, wait: _Wait) -> None:
        if wait.event is not None:
            self._spare.append(wait.event)
        if wait.freed.waits > 0:
            wait.freed.waits = -1
            self.stranded.append(wait.freed.block)


def _drained(queue: deque[T]) -> list[T]:
    """Take out what is in a queue, to which other threads may append."""
    found: list[T] = []
    with suppress(IndexError):
        while queue:
            found.append(queue.popleft())
    return found


class Intake:
    """The way back into a stock, guarded by ``lock``.

    ``bound`` are the most idle bytes that are kept; None: all.
    """

    def __init__(self, driver: Driver, stock: Stock, bound: Size | None) -> None:
        self._driver, self._stock, self.bound = driver, stock, bound
        self.lock = threading.Lock()
        self.closed = False
        self._returned = deque[Block]()
        self.pending = Pending(driver, self._returned)

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
        try:
            self.pending.poll()
        finally:
            self.settle()

    def wait(self) -> None:
        """Wait for the copies that use freed blocks, and take these in."""
        self.pending.wait()
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
            idle = self._stock.pools.default.evict()
        return self.give(idle)

    def close(self) -> None:
        """Wait for all work, and give back whatever nobody holds, now and later."""
        self.closed = True
        with Release() as release:
            release(self._driver.synchronize)
            release(self.wait)
            self.pending.abandon()
            with self.lock:
                rest = self.absorb()
            release(self.give, rest)
            release(self.pending.close)
