"""Streams, events and captures: the order of work, and the rules of recording it.

A call that capturing forbids invalidates the capture that it touches, as in CUDA; the
streams of that capture stay in it until it is ended where it began.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import NamedTuple

from sapwood.driver.api import CaptureStatus, EventHandle, NodeHandle, Op, StreamHandle
from sapwood.driver.emulated.graphs import Graph
from sapwood.driver.emulated.schedules import Item, Queue, Schedule
from sapwood.driver.handles import Counted
from sapwood.driver.results import Refusal, Result

_PER_THREAD = 2
_FIRST, _STEP = 0x5EED_0000_0000, 0x100  # look like addresses, as CUDA's do


class _Capture:
    """A graph in the making by the queue it began on and those forked from it.

    ``frontiers`` holds, for each queue that takes part, the nodes that its next op
    comes after.
    """

    __slots__ = ("broken", "frontiers", "graph", "open", "origin", "thread")

    def __init__(self, origin: Queue, handles: Iterator[int]) -> None:
        self.origin, self.thread = origin, threading.get_ident()
        self.graph = Graph(handles)
        self.frontiers: dict[Queue, tuple[NodeHandle, ...]] = {origin: ()}
        self.broken: str | None = None
        self.open = True

    def invalidate(self, why: str) -> None:
        if self.broken is None:
            self.broken = why

    def check(self) -> None:
        if self.broken is not None:
            raise Result.STREAM_CAPTURE_INVALIDATED.refusal(
                f"the capture was invalidated: {self.broken}. End it and capture anew"
            )

    def join(self, queue: Queue, nodes: tuple[NodeHandle, ...]) -> None:
        own = self.frontiers.get(queue, ())
        self.frontiers[queue] = tuple(dict.fromkeys((*own, *nodes)))

    def is_joined(self) -> bool:
        reached = self.graph.before(self.frontiers[self.origin])
        return all(reached.issuperset(nodes) for nodes in self.frontiers.values())


class _Mark(NamedTuple):
    """What an event that was recorded while capturing stands for."""

    capture: _Capture
    nodes: tuple[NodeHandle, ...]


@dataclass(slots=True)
class _Event:
    """Whether an event can tell time, and what it marks, if anything yet."""

    timing: bool
    mark: Item | _Mark | None = None


class Flow:
    """The streams and events of one device."""

    def __init__(self, schedule: Schedule, handles: Iterator[int]) -> None:
        self.schedule = schedule
        self.streams = Counted[StreamHandle, Queue]("stream", handles)
        self.events = Counted[EventHandle, _Event]("event", handles)
        # Of raw numbers: 0 and 1 mean the default stream, 2 that of a thread.
        self._default, self._thread = schedule.open(), threading.local()
        self._named: dict[int, Queue] = {}
        self._numbers = count(_FIRST, _STEP)
        self._foreign: set[StreamHandle] = set()
        self._captures: dict[Queue, _Capture] = {}
        self._handles = handles

    # Streams.

    def create_stream(self, lasting: bool = False) -> StreamHandle:
        """Return a new stream."""
        stream = self.streams.add(self.schedule.open())
        if lasting:
            self._foreign.add(stream)
        return stream

    def destroy_stream(self, stream: StreamHandle) -> None:
        """End a stream, or forget a foreign one; work given to it still runs."""
        queue = self.streams.take(stream)
        foreign = stream in self._foreign
        self._foreign.discard(stream)
        capture = self._captures.get(queue)
        if capture is not None and not (foreign and queue is not capture.origin):
            del self._captures[queue]
            capture.invalidate(f"its stream {stream} was destroyed")
            if queue is capture.origin:
                self._finish(capture)
        if not foreign:
            self._close(queue)

    def adopt_stream(self, raw: int) -> StreamHandle:
        """Return the handle of a stream by its raw number."""
        queue = self._called(raw)
        for stream, each in self.streams.values.items():
            if each is queue:
                return stream
        stream = self.streams.add(queue)
        self._foreign.add(stream)
        return stream

    def raw_stream(self, stream: StreamHandle) -> int:
        """Return the raw number of a stream."""
        queue = self.streams.find(stream)
        if queue is self._default:
            return 0
        if queue is getattr(self._thread, "queue", None):
            return _PER_THREAD
        known = (raw for raw, each in self._named.items() if each is queue)
        return next(known, None) or self._name(queue)

    def open_foreign(self) -> int:
        """Return the raw number of a new stream that somebody else owns."""
        return self._name(self.schedule.open())

    def close_foreign(self, raw: int) -> None:
        """End a stream that somebody else owns, and nobody has adopted."""
        queue = self._called(raw)
        if any(each is queue for each in self.streams.values.values()):
            raise Result.ILLEGAL_STATE.refusal(
                f"stream {raw:#x} has a handle: destroy that before the stream ends"
            )
        self._close(queue)

    def submit(self, stream: StreamHandle, op: Op, work: Callable[[], None]) -> None:
        """Record the op where the stream is capturing, else give it the work."""
        queue = self._queue(stream)
        capture = self._captures.get(queue)
        if capture is None:
            self.schedule.submit(queue, work)
        else:
            capture.check()
            node = capture.graph.add(op, capture.frontiers[queue])
            capture.frontiers[queue] = (node,)

    def run(self, stream: StreamHandle, doing: str, work: Callable[[], None]) -> None:
        """Give a stream work that cannot be recorded."""
        self.schedule.submit(self._queue(stream, doing), work)

    def synchronize_stream(self, stream: StreamHandle) -> None:
        """Wait for all work of a stream."""
        self._wait(self._queue(stream, "synchronize with").tail)

    def query_stream(self, stream: StreamHandle) -> bool:
        """Return whether all work of a stream is done."""
        queue = self._queue(stream, "query")
        self.schedule.progress()
        _raise(queue.error)
        return queue.tail is None or queue.tail.done

    def synchronize(self) -> None:
        """Wait for all work of all streams."""
        mine = threading.get_ident()
        for capture in self._captures.values():
            if capture.thread == mine:
                capture.invalidate("its thread synchronized with the device")
                raise Result.STREAM_CAPTURE_UNSUPPORTED.refusal(
                    "this thread is capturing: synchronize before or after the capture"
                )
        _raise(self.schedule.drain_all())

    # Events.

    def create_event(self, timing: bool = False) -> EventHandle:
        """Return an event that marks nothing yet."""
        return self.events.add(_Event(timing))

    def destroy_event(self, event: EventHandle) -> None:
        """End an event."""
        self.events.take(event)

    def record_event(self, event: EventHandle, stream: StreamHandle) -> None:
        """Let the event mark all work given to the stream so far."""
        found = self.events.find(event)
        queue = self._queue(stream)
        capture = self._captures.get(queue)
        if capture is None:
            found.mark = self.schedule.mark(queue)
        else:
            capture.check()
            found.mark = _Mark(capture, capture.frontiers[queue])

    def wait_event(self, stream: StreamHandle, event: EventHandle) -> None:
        """Order further work of the stream after what the event marks, if anything."""
        queue = self._queue(stream)
        mark = self.events.find(event).mark
        capture = self._captures.get(queue)
        if capture is not None:
            capture.check()
        if isinstance(mark, _Mark):
            self._join(queue, capture, mark)
        elif mark is not None and capture is not None:
            capture.invalidate("a stream of it waited for work outside it")
            raise Result.STREAM_CAPTURE_ISOLATION.refusal(
                f"event {event} marks work outside the capture that stream {stream} is "
                "in: wait for it before the capture begins"
            )
        elif mark is not None:
            self.schedule.follow(queue, mark)

    def query_event(self, event: EventHandle) -> bool:
        """Return whether what the event marks is done."""
        item = self._item(event)
        if item is None:
            return True
        self.schedule.progress()
        _raise(item.error)
        return item.done

    def synchronize_event(self, event: EventHandle) -> None:
        """Wait for what the event marks."""
        self._wait(self._item(event))

    def elapsed(self, start: EventHandle, end: EventHandle) -> float:
        """Return the milliseconds between two events that are done."""
        return 1e3 * (self._time(end) - self._time(start))

    def _time(self, event: EventHandle) -> float:
        item = self._item(event)
        if not self.events.find(event).timing:
            raise Result.INVALID_HANDLE.refusal(
                f"event {event} cannot tell time: create it with timing"
            )
        if item is None or not item.done:
            raise Result.NOT_READY.refusal(
                f"event {event} is not done: record it and synchronize with it before "
                "measuring"
            )
        return item.time

    # Captures.

    def begin_capture(self, stream: StreamHandle) -> None:
        """Record what the stream is given, instead of running it."""
        queue = self._queue(stream)
        if queue is self._default:
            raise Result.STREAM_CAPTURE_UNSUPPORTED.refusal(
                "the default stream cannot be captured: capture on one that was made"
            )
        if queue in self._captures:
            raise Result.ILLEGAL_STATE.refusal(
                f"stream {stream} is capturing already: end that capture first"
            )
        self._captures[queue] = _Capture(queue, self._handles)

    def end(self, stream: StreamHandle) -> Graph:
        """End the capture that began on the stream, and return what it recorded."""
        capture = self._capture(stream)
        if capture.origin is not self.streams.find(stream):
            raise Result.STREAM_CAPTURE_UNMATCHED.refusal(
                f"the capture did not begin on stream {stream}: end it where it began"
            )
        if capture.thread != threading.get_ident():
            raise Result.STREAM_CAPTURE_WRONG_THREAD.refusal(
                "the capture began on another thread: end it there"
            )
        self._finish(capture)
        capture.check()
        if not capture.is_joined():
            raise Result.STREAM_CAPTURE_UNJOINED.refusal(
                f"stream {stream} does not wait for all streams forked from it: record "
                "an event on each and wait for it before the capture ends"
            )
        return capture.graph

    def capture_status(self, stream: StreamHandle) -> CaptureStatus:
        """Return whether the stream is capturing."""
        capture = self._captures.get(self.streams.find(stream))
        if capture is None:
            return CaptureStatus.NONE
        if capture.broken is None:
            return CaptureStatus.ACTIVE
        return CaptureStatus.INVALIDATED

    def counter(self, stream: StreamHandle) -> Callable[[], int]:
        """Return what counts the nodes of the capture that the stream is in."""
        return partial(len, self._capture(stream).graph.nodes)

    def _capture(self, stream: StreamHandle) -> _Capture:
        """Return the capture that a stream is in."""
        capture = self._captures.get(self.streams.find(stream))
        if capture is None:
            raise Result.ILLEGAL_STATE.refusal(
                f"stream {stream} is not capturing: begin first"
            )
        return capture

    def _called(self, raw: int) -> Queue:
        """Return the queue that a library means by ``raw``."""
        if raw in {0, 1}:
            return self._default
        if raw == _PER_THREAD:
            found: Queue | None = getattr(self._thread, "queue", None)
            self._thread.queue = found = found or self.schedule.open()
            return found
        try:
            return self._named[raw]
        except KeyError:
            raise Result.INVALID_HANDLE.refusal(
                f"no stream is called {raw:#x}: adopt what another library gave as its "
                "raw stream, while that stream lives"
            ) from None

    def _name(self, queue: Queue) -> int:
        """Return a new raw number for a queue."""
        raw = next(self._numbers)
        self._named[raw] = queue
        return raw

    def _close(self, queue: Queue) -> None:
        """End a queue, and its name if it has one."""
        self._named = {raw: q for raw, q in self._named.items() if q is not queue}
        self.schedule.close(queue)

    def _queue(self, stream: StreamHandle, doing: str = "") -> Queue:
        """Return where a stream's work goes, if it may do what is being done."""
        queue = self.streams.find(stream)
        if queue.tail is not None:
            _raise(queue.tail.error)
        if doing and queue in self._captures:
            tried = f"somebody tried to {doing} its stream {stream}"
            self._captures[queue].invalidate(tried)
            raise Result.STREAM_CAPTURE_UNSUPPORTED.refusal(
                f"cannot {doing} stream {stream} while it is capturing: do so before "
                "or after the capture"
            )
        return queue

    def _item(self, event: EventHandle) -> Item | None:
        """Return what an event waits for, which may not be inside a capture."""
        mark = self.events.find(event).mark
        if isinstance(mark, _Mark):
            mark.capture.invalidate(f"somebody asked whether its event {event} is done")
            raise Result.CAPTURED_EVENT.refusal(
                f"event {event} was recorded while capturing, so that it never happens "
                "as such: record it outside the capture"
            )
        return mark

    def _join(self, queue: Queue, capture: _Capture | None, mark: _Mark) -> None:
        """Order a queue after captured work, forking it into the capture if needed."""
        if not mark.capture.open:
            if capture is not None:
                capture.invalidate("a stream of it waited for an ended capture")
            raise Result.CAPTURED_EVENT.refusal(
                "the event was recorded in a capture that has ended: record it again"
            )
        mark.capture.check()
        if capture is not None and capture is not mark.capture:
            capture.invalidate("it met another capture")
            mark.capture.invalidate("it met another capture")
            raise Result.STREAM_CAPTURE_MERGE.refusal(
                "the event belongs to another capture: capture one after the other"
            )
        mark.capture.join(queue, mark.nodes)
        self._captures[queue] = mark.capture

    def _wait(self, item: Item | None) -> None:
        """Run what an item comes after, and it; raise what failed of that."""
        if item is not None:
            self.schedule.drain((item,))
            _raise(item.error)

    def _finish(self, capture: _Capture) -> None:
        capture.open = False
        for queue in capture.frontiers:
            self._captures.pop(queue, None)


def _raise(error: Refusal | None) -> None:
    if error is not None:
        raise Refusal(error.result, error.explanation) from error.__cause__
