"""Freed blocks that copies may still use: each waits for an event per stream.

Asking never blocks, and putting a block in takes no lock, so that a finaliser may. An
event is not recorded into a capture: such a block waits for the capture to end first.
What cannot be told any more, because a call failed, is stranded until the whole device
was waited for.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from sapwood.allocator.pinned.block import Block
from sapwood.driver.api import CaptureStatus, Driver, EventHandle, StreamHandle
from sapwood.driver.release import Release
from sapwood.errors import DriverError

__all__ = ["Pending"]

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
    """The blocks of one device that are freed and not free."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._turn = threading.Lock()
        self._new: deque[tuple[StreamHandle, _Wait]] = deque()
        self._queues: dict[StreamHandle, deque[_Wait]] = {}
        self._ready: deque[Block] = deque()
        self._stranded: deque[Block] = deque()
        self._spare: deque[EventHandle] = deque()

    def __bool__(self) -> bool:
        """Whether anything may become ready by itself."""
        return bool(self._new or self._ready or self._queues)

    @property
    def stranded(self) -> bool:
        """Whether something is free only when the whole device was waited for."""
        return bool(self._stranded)

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
            self._stranded.append(block)
            raise
        self._new += waits

    def poll(self) -> list[Block]:
        """Return the blocks that are free now, without waiting.

        Raises `DriverError` where the device cannot say; that block is stranded.
        """
        if self and self._turn.acquire(blocking=False):
            try:
                self._sort()
                self._advance()
            finally:
                self._turn.release()
        return _drained(self._ready)

    def wait(self) -> list[Block]:
        """Return all blocks, after waiting for the copies that use them.

        Blocks whose streams capture stay. Raises `DriverError` where waiting fails.
        """
        with self._turn:
            if self._stranded:
                self._driver.synchronize()
                self._ready += _drained(self._stranded)
            self._sort()
            for queue in self._queues.values():
                for wait in reversed(queue):
                    if wait.event is not None:
                        self._driver.synchronize_event(wait.event)
                        break
            self._advance()
        return _drained(self._ready)

    def abandon(self) -> list[Block]:
        """Return all blocks that are left, used or not: the device is done with."""
        with self._turn:
            self._sort()
            for queue in self._queues.values():
                for wait in queue:
                    self._strand(wait)
            self._queues.clear()
        return [*_drained(self._ready), *_drained(self._stranded)]

    def forget(self, stream: StreamHandle, heir: StreamHandle) -> None:
        """Let what waits for a stream's capture wait for its heir."""
        with self._turn:
            self._sort()
            for wait in self._queues.pop(stream, ()):
                self._queues.setdefault(heir, deque()).append(wait)

    def close(self) -> None:
        """Destroy the events that nobody waits for."""
        with Release() as release:
            for event in _drained(self._spare):
                release(self._driver.destroy_event, event)

    def _mark(self, stream: StreamHandle) -> EventHandle | None:
        """Return an event after the stream's work so far; None while it captures."""
        driver = self._driver
        if driver.capture_status(stream) is not CaptureStatus.NONE:
            return None
        try:
            event = self._spare.pop()
        except IndexError:
            event = driver.create_event()
        try:
            driver.record_event(event, stream)
        except DriverError:
            self._spare.append(event)
            raise
        return event

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
            self._stranded.append(wait.freed.block)


def _drained(queue: deque[T]) -> list[T]:
    """Take out what is in a queue, to which other threads may append."""
    found: list[T] = []
    with suppress(IndexError):
        while queue:
            found.append(queue.popleft())
    return found
