"""Freed blocks that work on other streams may still use: the books of them.

A block waits for one `Mark` per stream, recorded when it is freed; or is *unmarked*,
while nothing may be recorded (a capture is under way), while recording failed, or
because it is ordered by waits on the device when it is needed. Use inside a capture
ends with the capture: its streams are told apart by a negative number. Nothing here
calls the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from sapwood.allocator.caching.block import Block
from sapwood.allocator.caching.events import Events
from sapwood.allocator.caching.pools import Pool
from sapwood.driver.api import EventHandle, StreamHandle

_AT_ONCE: Final = 16
"""So many marks of a stream are asked about before the books are written."""

Use = tuple[Block, StreamHandle]
"""A freed block, and another stream that may be using it."""


def captured(stream: StreamHandle) -> StreamHandle:
    """Return what stands for a stream that used a block inside a capture, and back."""
    return StreamHandle(~stream)


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """An event that a block waits for; no other is the same, whatever its event."""

    event: EventHandle
    stream: StreamHandle
    block: Block


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """What a block waited for, when somebody undertook to order it."""

    block: Block
    marks: tuple[Mark, ...]
    streams: frozenset[StreamHandle]


class Pending:
    """Blocks that wait, the marks that they wait for, and spare events."""

    def __init__(self) -> None:
        self.events = Events()
        self.unmarked: dict[Block, set[StreamHandle]] = {}
        self._queues: dict[StreamHandle, deque[Mark]] = {}
        # How many marks, made or on their way, and claims a block waits for.
        self._left: dict[Block, int] = {}
        self._ready: list[Block] = []

    def __bool__(self) -> bool:
        return bool(self._left or self.unmarked or self._ready)

    def leave(self, block: Block, streams: Iterable[StreamHandle]) -> None:
        """Let a block wait for streams, without marks for now."""
        self.unmarked[block] = set(streams)

    # Marks are made, and are over.

    def unmarked_uses(self, blocks: Collection[Block]) -> list[Use]:
        """Return the uses by blocks that are to be marked; each is, or is not, next.

        What was used inside a capture only is over: it is ready.
        """
        found: list[Use] = []
        for block in blocks:
            streams = [s for s in self.unmarked.pop(block) if s >= 0]
            found += [(block, stream) for stream in streams]
            if streams:
                self._left[block] = self._left.get(block, 0) + len(streams)
            elif block not in self._left:
                self._ready.append(block)
        return found

    def mark(self, mark: Mark) -> None:
        """Let a use be marked."""
        self._queues.setdefault(mark.stream, deque()).append(mark)

    def unmark(self, use: Use) -> None:
        """Let a use be unmarked again: it could not be recorded."""
        block, stream = use
        self.unmarked.setdefault(block, set()).add(stream)
        self._count_down(block)

    def heads(self) -> list[tuple[Mark, ...]]:
        """Return the first marks of each stream, in the order in which they end."""
        queues = self._queues.values()
        return [tuple(islice(queue, _AT_ONCE)) for queue in queues if queue]

    def marks(self, pool: Pool | None = None) -> list[Mark]:
        """Return the marks that blocks of a pool, or all, wait for."""
        return [
            mark
            for queue in self._queues.values()
            for mark in queue
            if pool is None or mark.block.segment.bin.pool is pool
        ]

    def end(self, marks: Iterable[Mark]) -> None:
        """Let marks be over, as far as nobody did before.

        An event may mark something else since: so the very mark must be there.
        """
        for mark in marks:
            queue = self._queues.get(mark.stream, deque())
            if queue and queue[0] is mark:
                queue.popleft()
            elif mark in queue:
                queue.remove(mark)
            else:
                continue
            if not queue:
                del self._queues[mark.stream]
            self.events.take_back([mark.event])
            if self._count_down(mark.block) and mark.block not in self.unmarked:
                self._ready.append(mark.block)

    def _count_down(self, block: Block) -> bool:
        """Count one thing less that a block waits for; say whether it was the last."""
        self._left[block] -= 1
        if self._left[block]:
            return False
        del self._left[block]
        return True

    def collected(self) -> list[Block]:
        """Return the blocks that wait for nothing any more, each once."""
        ready, self._ready = self._ready, []
        return ready

    def captured_only(self) -> list[Block]:
        """Return the unmarked blocks that were used inside a capture and not else."""
        return [
            b for b, streams in self.unmarked.items() if all(s < 0 for s in streams)
        ]

    # Blocks are ordered on the device instead.

    def waiting(self) -> list[Block]:
        """Return all blocks that wait and may be claimed, in no order.

        Not those whose marks are on their way, or that others have claimed.
        """
        made = self._made()
        blocks = {**self._left, **self.unmarked}
        return [b for b in blocks if self._left.get(b, 0) == made.get(b, 0)]

    def _made(self) -> dict[Block, int]:
        made: dict[Block, int] = {}
        for mark in self.marks():
            made[mark.block] = made.get(mark.block, 0) + 1
        return made

    def claim(self, block: Block) -> Claim:
        """Take all that a block waits for; from now on it waits for its claim."""
        marks = [mark for mark in self.marks() if mark.block is block]
        self._drop(marks)
        self._left[block] = 1
        return Claim(block, tuple(marks), frozenset(self.unmarked.pop(block, ())))

    def settle(self, claim: Claim) -> None:
        """Let a claimed block wait for nothing any more."""
        del self._left[claim.block]
        self.events.take_back(mark.event for mark in claim.marks)

    def renounce(self, claim: Claim) -> None:
        """Let a claimed block wait for what it waited for before."""
        del self._left[claim.block]
        if claim.marks:
            self._left[claim.block] = len(claim.marks)
        if claim.streams:
            self.unmarked[claim.block] = set(claim.streams)
        for mark in claim.marks:
            self._queues.setdefault(mark.stream, deque()).appendleft(mark)

    def forget(self, block: Block) -> None:
        """Let a block wait for nothing any more."""
        self._ready = [ready for ready in self._ready if ready is not block]
        self.unmarked.pop(block, None)
        if self._left.pop(block, 0):
            marks = [mark for mark in self.marks() if mark.block is block]
            self._drop(marks)
            self.events.take_back(mark.event for mark in marks)

    def _drop(self, marks: Iterable[Mark]) -> None:
        for mark in marks:
            queue = self._queues[mark.stream]
            queue.remove(mark)
            if not queue:
                del self._queues[mark.stream]

    def rename(self, stream: StreamHandle, heir: StreamHandle) -> None:
        """Wait for the heir instead of a stream that is gone; events stay."""
        for streams in self.unmarked.values():
            if stream in streams:
                streams.discard(stream)
                streams.add(heir)
