"""Freed blocks that work on other streams may still use.

A block waits for one event per stream, recorded when it is freed; or is *unmarked*,
while nothing may be recorded (a capture is under way), while recording failed, or
because it is ordered by waits on the device when it is needed. Nobody is waited for
here but in `synchronize`. Use inside a capture ends with the capture: its streams
are told apart by a negative number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from sapwood.driver.api import Driver, EventHandle, StreamHandle
from sapwood.driver.release import Release
from sapwood.memory.caching.block import Block
from sapwood.memory.caching.pools import Pool

__all__ = ["Pending", "captured"]


def captured(stream: StreamHandle) -> StreamHandle:
    """Return what stands for a stream that used a block inside a capture, and back."""
    return StreamHandle(~stream)


class Pending:
    """Blocks that wait, and the events that they wait for."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.unmarked: dict[Block, set[StreamHandle]] = {}
        self._queues: dict[StreamHandle, deque[tuple[EventHandle, Block]]] = {}
        self._left: dict[Block, int] = {}
        self._ready: list[Block] = []
        self._spare: list[EventHandle] = []

    def __bool__(self) -> bool:
        return bool(self._left or self.unmarked or self._ready)

    def leave(self, block: Block, streams: Iterable[StreamHandle]) -> None:
        """Let a block wait for streams, without events for now."""
        self.unmarked[block] = set(streams)

    def mark(self, block: Block) -> None:
        """Record the events that an unmarked block waits for.

        Where one cannot be recorded the error is raised, and the block stays
        unmarked for the streams that are left.
        """
        streams = self.unmarked[block]
        streams.difference_update([s for s in streams if s < 0])
        while streams:
            stream = next(iter(streams))
            self._record(block, stream)
            streams.discard(stream)
        del self.unmarked[block]
        if block not in self._left:
            self._ready.append(block)

    def end_capture(self) -> list[Block]:
        """Let uses inside the capture be over; return the blocks without others."""
        for block, streams in list(self.unmarked.items()):
            if all(stream < 0 for stream in streams):
                self.mark(block)
        return self._collected()

    def mark_all(self) -> None:
        """Record the events of all unmarked blocks, as far as that can be done."""
        with Release() as release:
            for block in list(self.unmarked):
                release(self.mark, block)

    def _record(self, block: Block, stream: StreamHandle) -> None:
        (event,) = self.lend([stream])
        self._queues.setdefault(stream, deque()).append((event, block))
        self._left[block] = self._left.get(block, 0) + 1

    def poll(self) -> list[Block]:
        """Return the blocks that wait for nothing any more, each once."""
        for stream, queue in list(self._queues.items()):
            while queue and self.driver.query_event(queue[0][0]):
                self._finish(*queue.popleft())
            if not queue:
                del self._queues[stream]
        return self._collected()

    def synchronize(self, pool: Pool | None = None) -> list[Block]:
        """Wait for all events, or those of a pool; return the blocks that waited."""
        for queue in self._queues.values():
            for event, block in list(queue):
                if pool is None or block.segment.silo.pool is pool:
                    self.driver.synchronize_event(event)
                    queue.remove((event, block))
                    self._finish(event, block)
        return self._collected()

    def _finish(self, event: EventHandle, block: Block) -> None:
        self._spare.append(event)
        self._left[block] -= 1
        if not self._left[block]:
            del self._left[block]
            if block not in self.unmarked:
                self._ready.append(block)

    def _collected(self) -> list[Block]:
        # Kept when a call before failed: a block that is over is never lost.
        ready, self._ready = self._ready, []
        return ready

    def order(self, block: Block, stream: StreamHandle) -> None:
        """Order the further work of a stream after all that a block waits for.

        From then on it is free to that stream. Raises having changed nothing that
        matters: waits that were made stay, and do no harm.
        """
        for queue in self._queues.values():
            for event, waiting in queue:
                if waiting is block:
                    self.driver.wait_event(stream, event)
        for user in self.unmarked.get(block, ()):
            if user != stream and user >= 0:
                self.order_streams(stream, user)
        self.forget(block)

    def order_streams(self, later: StreamHandle, earlier: StreamHandle) -> None:
        """Order the further work of one stream after all work of another."""
        (event,) = self.lend([earlier])
        try:
            # A wait binds to the record before it: the event is free at once.
            self.driver.wait_event(later, event)
        finally:
            self._spare.append(event)

    def forget(self, block: Block) -> None:
        """Let a block wait for nothing any more."""
        self._ready = [ready for ready in self._ready if ready is not block]
        self.unmarked.pop(block, None)
        if self._left.pop(block, 0):
            for stream, queue in list(self._queues.items()):
                kept = deque(pair for pair in queue if pair[1] is not block)
                self._spare += [event for event, waiting in queue if waiting is block]
                self._queues[stream] = kept

    def lend(self, streams: Iterable[StreamHandle]) -> list[EventHandle]:
        """Return events that mark all work of streams; raises having lent none."""
        lent: list[EventHandle] = []
        try:
            for stream in streams:
                if not self._spare:
                    self._spare.append(self.driver.create_event())
                lent.append(self._spare.pop())
                self.driver.record_event(lent[-1], stream)
        except BaseException:
            self._spare += lent
            raise
        return lent

    def take_back(self, events: Iterable[EventHandle]) -> None:
        """Have events again that were lent."""
        self._spare += events

    def events(self, pool: Pool | None = None) -> list[EventHandle]:
        """Return the events that blocks of a pool, or all, wait for."""
        return [
            event
            for queue in self._queues.values()
            for event, block in queue
            if pool is None or block.segment.silo.pool is pool
        ]

    def waiting(self) -> list[Block]:
        """Return all blocks that wait, in no order."""
        return list({**self._left, **self.unmarked})

    def rename(self, stream: StreamHandle, heir: StreamHandle) -> None:
        """Wait for the heir instead of a stream that is gone; events stay."""
        for streams in self.unmarked.values():
            if stream in streams:
                streams.discard(stream)
                streams.add(heir)

    def close(self) -> None:
        """Destroy all events."""
        held = [event for queue in self._queues.values() for event, _ in queue]
        events, self._spare = [*self._spare, *held], []
        self._queues.clear()
        self._left.clear()
        self._ready.clear()
        self.unmarked.clear()
        with Release() as release:
            for event in events:
                release(self.driver.destroy_event, event)
