"""Freed blocks that work of streams may still use: the books of them.

Device memory and pinned memory are freed by the same books. A block waits for one `Use`
per stream: *marked* by an event, recorded when it is freed; or *unmarked*, while
nothing may be recorded (a capture is under way), while recording failed, or because it
is ordered by waits on the device when it is needed. Use inside a capture ends with the
capture: its streams are told apart by a negative number. Only `record` and `order` call
the device, and are called without the lock.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sapwood.driver.api import Driver, EventHandle, StreamHandle

B = TypeVar("B", bound=Hashable)


def captured(stream: StreamHandle) -> StreamHandle:
    """Return what stands for a stream that used a block inside a capture, and back."""
    return StreamHandle(~stream)


def record(
    driver: Driver, stream: StreamHandle, spare: list[EventHandle]
) -> EventHandle:
    """Return an event that marks all work of a stream: a spare one, or a new one.

    Where it cannot be recorded it stays among the spare ones, which any thread takes.
    """
    try:
        event = spare.pop()
    except IndexError:
        event = driver.create_event()
    try:
        driver.record_event(event, stream)
    except BaseException:
        spare.append(event)
        raise
    return event


@dataclass(slots=True, eq=False)
class Use(Generic[B]):
    """That a stream may be using a freed block: until its ``event``, if it has one.

    While somebody waits for it without the lock it is *watched*: ``watchers`` is above
    0, and its event is not recorded anew, nor destroyed, though the use be ``over``.
    """

    block: B
    stream: StreamHandle
    event: EventHandle | None = None
    watchers: int = 0
    over: bool = False


class Pending(Generic[B]):
    """Blocks that wait, the uses that they wait for, and spare events.

    ``unmarked`` are the streams of unmarked uses. ``spare`` events mark nothing; any
    thread takes one from there, or adds one, without the lock.
    """

    def __init__(self) -> None:
        self.unmarked: dict[B, set[StreamHandle]] = {}
        self.spare: list[EventHandle] = []
        self._marked = defaultdict[StreamHandle, deque[Use[B]]](deque)
        # How many uses, marked or about to be, a block waits for.
        self._left: dict[B, int] = {}
        self._ready: list[B] = []

    def __bool__(self) -> bool:
        return bool(self._left or self.unmarked or self._ready)

    # Uses are marked, and are over.

    def begin(self, uses: Iterable[Use[B]]) -> None:
        """Have the uses of a block; those without an event get one in their turn.

        That is when they are the first of their stream: `queues` has them in order.
        """
        for use in uses:
            self._left[use.block] = self._left.get(use.block, 0) + 1
            self._marked[use.stream].append(use)

    def take_unmarked(self, blocks: Collection[B]) -> list[Use[B]]:
        """Return the unmarked uses of blocks, to be marked or ended: `keep` or `end`.

        What was used inside a capture only is over: it is ready.
        """
        taken: list[Use[B]] = []
        for block in blocks:
            streams = [s for s in self.unmarked.pop(block) if s >= 0]
            taken += [Use(block, stream) for stream in streams]
            if streams:
                self._left[block] = self._left.get(block, 0) + len(streams)
            elif block not in self._left:
                self._ready.append(block)
        return taken

    def keep(self, uses: Iterable[Use[B]]) -> None:
        """Have taken uses that are not over; without an event they are unmarked."""
        for use in uses:
            if use.event is not None:
                self._marked[use.stream].append(use)
            elif not use.over:
                self.unmarked.setdefault(use.block, set()).add(use.stream)
                self._count_down(use.block)

    def queues(self) -> list[deque[Use[B]]]:
        """Return the marked uses of each stream, in the order they end in."""
        return list(self._marked.values())

    def marked(self) -> list[Use[B]]:
        """Return all marked uses, those of a stream in the order they end in."""
        return [use for queue in self._marked.values() for use in queue]

    def end(self, uses: Iterable[Use[B]]) -> None:
        """Let uses be over, as far as nobody did before."""
        for use in uses:
            if use.over:
                continue
            use.over = True
            queue = self._marked.get(use.stream, ())
            if queue and use in queue:
                queue.remove(use)
                if not queue:
                    del self._marked[use.stream]
            if use.event is not None and not use.watchers:
                self.spare.append(use.event)
            if self._count_down(use.block) and use.block not in self.unmarked:
                self._ready.append(use.block)

    def watch(self, uses: Iterable[Use[B]]) -> None:
        """Keep the events of marked uses as they are, until `unwatch`."""
        for use in uses:
            use.watchers += 1

    def unwatch(self, uses: Iterable[Use[B]]) -> None:
        """End what `watch` began."""
        for use in uses:
            use.watchers -= 1
            if use.over and not use.watchers and use.event is not None:
                self.spare.append(use.event)

    def _count_down(self, block: B) -> bool:
        """Count one thing less that a block waits for; say whether it was the last."""
        self._left[block] -= 1
        if self._left[block]:
            return False
        del self._left[block]
        return True

    def take_ready(self) -> list[B]:
        """Return the blocks that wait for nothing any more, each once."""
        ready, self._ready = self._ready, []
        return ready

    def captured_only(self) -> list[B]:
        """Return the unmarked blocks that were used inside a capture and not else."""
        return [
            b for b, streams in self.unmarked.items() if all(s < 0 for s in streams)
        ]

    def forget(self, block: B) -> None:
        """Let a block wait for nothing any more."""
        uses = [use for use in self.marked() if use.block is block]
        if self.unmarked.pop(block, None) and not uses:
            self._ready.append(block)
        self.end(uses)

    def rename(self, stream: StreamHandle, successor: StreamHandle) -> None:
        """Wait for the successor instead of a stream that is gone; events stay."""
        for use in self._marked.pop(stream, ()):
            if use.event is None:
                use.stream = successor
            self._marked[use.stream].append(use)
        for streams in self.unmarked.values():
            if stream in streams:
                streams.discard(stream)
                streams.add(successor)

    # Calls of the device.

    def order(self, driver: Driver, later: StreamHandle, earlier: StreamHandle) -> None:
        """Order the further work of one stream after all work of another."""
        event = record(driver, earlier, self.spare)
        try:
            driver.wait_event(later, event)
        finally:
            # The wait binds to the record before it: the event is free at once.
            self.spare.append(event)
