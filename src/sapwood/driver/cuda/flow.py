"""Streams, events and captures.

Where CUDA ends or spoils a capture by a call that was refused, or overlooks a stream
that it lost, the refusal is made here first. Captures forbid things to their own
thread only.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

from sapwood.driver.api import CaptureStatus, EventHandle, StreamHandle
from sapwood.driver.cuda.bindings import Answer, Library, address_of
from sapwood.driver.cuda.hosts import Hosts
from sapwood.driver.cuda.place import Place
from sapwood.driver.handles import Table
from sapwood.driver.results import Refusal, Result, invalid_value

_NAME: Final = "cuGraphGetNodes"
_ASK: Final = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
"""Of no arrays, it returns at once: to let other threads run would take longer."""


def _counter_of(library: Library, graph: Any) -> Callable[[], int]:
    """Return what counts the nodes of a graph, which must exist when it is called."""
    ask, raw, found = _ASK(address_of(library, _NAME)), int(graph), ctypes.c_size_t()
    where = ctypes.addressof(found)

    def count() -> int:
        code = ask(raw, None, where)
        if code:
            cu = library.cu
            raise library.answer(cu.cuGraphGetNodes, cu.CUresult(code)).error(_NAME)
        return found.value

    return count


_DEFAULT, _LEGACY, _PER_THREAD = 0, 1, 2
_NAMED: Final = 0x1000  # handles of default streams are below, the rest are addresses


class Streams(Table[StreamHandle, Any]):
    """What CUDA calls each stream.

    ``foreign`` ones are somebody else's, who may capture them, and of no context where
    they are default streams.
    """

    def __init__(self, library: Library, device: Any) -> None:
        super().__init__("stream")
        self._library, self._device = library, device
        self._legacy = library.cu.CUstream(_LEGACY)
        self._per_thread = library.cu.CUstream(_PER_THREAD)
        self.foreign: set[StreamHandle] = set()
        self._of_threads: set[StreamHandle] = set()
        self._mine = threading.local()
        self._numbers = count(_PER_THREAD)

    def find(self, handle: StreamHandle) -> Any:
        """Return what this thread calls a stream."""
        found = self.values.get(handle)
        return self._of_thread(handle) if found is None else found

    def take(self, handle: StreamHandle) -> Any:
        """Return what this thread calls a stream, and end the handle."""
        raw = self.find(handle)
        self.values.pop(handle, None)
        self._of_threads.discard(handle)
        self.foreign.discard(handle)
        return raw

    def adopt(self, raw: int) -> StreamHandle:
        """Return the handle of a stream by its CUstream."""
        if raw == _PER_THREAD:
            return self._adopt_per_thread()
        handle = StreamHandle(_DEFAULT if raw == _LEGACY else raw)
        if handle not in self.values:
            self.put(handle, self._legacy if handle == _DEFAULT else self._own(raw))
            self.foreign.add(handle)
        return handle

    def raw(self, handle: StreamHandle) -> int:
        """Return the CUstream of a stream."""
        return int(self.find(handle)) if handle else _DEFAULT

    def is_legacy(self, handle: StreamHandle) -> bool:
        """Return whether this is the default stream that nobody can capture."""
        return handle == _DEFAULT

    def all(self) -> Iterator[Any]:
        """Yield streams whose work together is all work."""
        yield from self.values.values()
        if self._of_threads:
            yield self._legacy

    def handles(self) -> list[StreamHandle]:
        """Return all handles."""
        return [*self.values, *self._of_threads]

    def __len__(self) -> int:
        return len(self.values) + len(self._of_threads)

    def _adopt_per_thread(self) -> StreamHandle:
        handle: StreamHandle | None = getattr(self._mine, "handle", None)
        if handle not in self._of_threads:
            handle = self._mine.handle = StreamHandle(next(self._numbers))
            self._of_threads.add(handle)
            self.foreign.add(handle)
        return handle

    def _own(self, raw: int) -> Any:
        """Return the stream at an address, if it is this GPU's."""
        if raw < _NAMED:
            raise Result.INVALID_HANDLE.refusal(
                f"{raw:#x} is no stream: adopt a CUstream, which is an address, or 0, "
                "1 or 2 for the default ones"
            )
        stream = self._library.cu.CUstream(raw)
        device = self._library(self._library.cu.cuStreamGetDevice, stream)
        if int(device) != int(self._device):
            raise invalid_value(
                f"stream {raw:#x} is one of GPU {int(device)}, this is "
                f"{int(self._device)}: adopt it on its own"
            )
        return stream

    def _of_thread(self, handle: StreamHandle) -> Any:
        if handle not in self._of_threads:
            raise self._unknown(handle)
        mine = getattr(self._mine, "handle", None) == handle
        # The legacy stream waits for every thread's, and they for it.
        return self._per_thread if mine else self._legacy


class Flow:
    """The streams and events of one device."""

    def __init__(self, library: Library, hosts: Hosts, place: Place) -> None:
        self._library, self._hosts, self._place = library, hosts, place
        self.streams = Streams(library, place.device)
        self.events = Table[EventHandle, Any]("event")
        self._timed: set[EventHandle] = set()
        self.origins: dict[StreamHandle, int] = {}  # of captures; their threads
        # Events that mark work of which no stream tells any more: it was destroyed, or
        # captures. Whoever holds the turn adds some; whoever holds the wait removes.
        self._left: list[Any] = []
        self._turn, self._wait = threading.Lock(), threading.Lock()
        of = library.cu.CUstreamCaptureStatus
        self._statuses = {
            of.CU_STREAM_CAPTURE_STATUS_NONE: CaptureStatus.NONE,
            of.CU_STREAM_CAPTURE_STATUS_ACTIVE: CaptureStatus.ACTIVE,
            of.CU_STREAM_CAPTURE_STATUS_INVALIDATED: CaptureStatus.INVALIDATED,
        }

    # Streams.

    def create_stream(self, lasting: bool = False) -> StreamHandle:
        """Return a stream that the default stream does not wait for."""
        cu = self._library.cu
        non_blocking = cu.CUstream_flags.CU_STREAM_NON_BLOCKING
        with self._turn:
            raw = self._library(cu.cuStreamCreate, non_blocking)
            handle = self.streams.put(StreamHandle(int(raw)), raw)
            if lasting:
                self.streams.foreign.add(handle)
            return handle

    def destroy_stream(self, stream: StreamHandle) -> None:
        """End a stream, or forget a foreign one; work given to it still runs."""
        library, cu = self._library, self._library.cu
        with self._turn:
            foreign = stream in self.streams.foreign
            raw = self.streams.take(stream)
            try:
                if self._status(raw) is CaptureStatus.NONE:
                    self._leave(raw)
                elif not foreign or stream in self.origins:
                    self._lose(stream, raw)
            finally:
                if not foreign:
                    library(cu.cuStreamDestroy, raw)

    def adopt_stream(self, raw: int) -> StreamHandle:
        """Return the handle of a stream by its CUstream."""
        with self._turn:
            return self.streams.adopt(raw)

    def idle(self, stream: StreamHandle, doing: str) -> Any:
        """Return a stream for what cannot be recorded; invalidates its capture."""
        raw = self.streams.find(stream)
        self._hosts.check()
        if self._status(raw) is not CaptureStatus.NONE:
            self._invalidate(raw, doing)
        return raw

    def raw_stream(self, stream: StreamHandle) -> int:
        """Return the CUstream of a stream."""
        return self.streams.raw(stream)

    def synchronize_stream(self, stream: StreamHandle) -> None:
        """Wait for all work of a stream."""
        raw = self.streams.find(stream)
        self._hosts.check()
        self._library(self._library.cu.cuStreamSynchronize, raw)
        self._hosts.check()

    def query_stream(self, stream: StreamHandle) -> bool:
        """Return whether all work of a stream is done."""
        return self._is_done(self._library.cu.cuStreamQuery, self.streams.find(stream))

    def synchronize(self) -> None:
        """Wait for all work of all streams, those of other threads' captures aside."""
        mine = threading.get_ident()
        self._hosts.check()
        for stream, thread in list(self.origins.items()):
            if thread == mine:
                self._invalidate(self.streams.find(stream), "synchronize with")
        self.settle()
        self._hosts.check()

    def settle(self) -> None:
        """Wait for all work of all streams, whatever became of it.

        Never by cuCtxSynchronize, which spoils whatever any thread is capturing, nor
        by cuStreamSynchronize, for the stream may begin to capture meanwhile.
        """
        library, cu = self._library, self._library.cu
        with self._wait:
            retired = self._hosts.retired()
            with self._turn:
                for raw in self.streams.all():
                    if self._status(raw) is CaptureStatus.NONE:
                        self._leave(raw)
                marks = tuple(self._left)
            for mark in marks:
                library(cu.cuEventSynchronize, mark)
            for mark in marks:
                self._left.remove(mark)
                library(cu.cuEventDestroy, mark)
            self._hosts.forget(retired)

    # Events.

    def create_event(self, timing: bool = False) -> EventHandle:
        """Return an event, which can tell time if asked to: that makes it dearer."""
        raw = self._event(timing)
        event = self.events.put(EventHandle(int(raw)), raw)
        if timing:
            self._timed.add(event)
        return event

    def destroy_event(self, event: EventHandle) -> None:
        """End an event; what waits for what it marks goes on waiting."""
        self._timed.discard(event)
        self._library(self._library.cu.cuEventDestroy, self.events.take(event))

    def record_event(self, event: EventHandle, stream: StreamHandle) -> None:
        """Let the event mark all work given to the stream so far."""
        mark, raw = self.events.find(event), self.streams.find(stream)
        self._hosts.check()
        if stream in self.streams.foreign:
            with self._place.here():
                self._library(self._library.cu.cuEventRecord, mark, raw)
        else:
            self._library(self._library.cu.cuEventRecord, mark, raw)

    def wait_event(self, stream: StreamHandle, event: EventHandle) -> None:
        """Order further work of the stream after what the event marks, if anything."""
        if self.origins or stream in self.streams.foreign:
            with self._place.here():
                self._join_capture(stream, event)
        else:
            self._order(stream, event)

    def _order(self, stream: StreamHandle, event: EventHandle) -> None:
        raw, mark = self.streams.find(stream), self.events.find(event)
        self._hosts.check()
        try:
            self._library(self._library.cu.cuStreamWaitEvent, raw, mark, 0)
        except Answer as answer:
            raise _of_ended_capture(answer, event) from None

    def _join_capture(self, stream: StreamHandle, event: EventHandle) -> None:
        """Do the same while there are captures: the stream may take part in one."""
        raw = self.streams.find(stream)
        with self._turn:
            outside = self._status(raw) is CaptureStatus.NONE
            left = self._leave(raw) if outside else None
            self._order(stream, event)
            if left is not None and self._status(raw) is CaptureStatus.NONE:
                self._left.remove(left)
                self._library(self._library.cu.cuEventDestroy, left)

    def query_event(self, event: EventHandle) -> bool:
        """Return whether what the event marks is done."""
        try:
            return self._is_done(self._library.cu.cuEventQuery, self.events.find(event))
        except Answer as answer:
            raise _of_ended_capture(answer, event) from None

    def synchronize_event(self, event: EventHandle) -> None:
        """Wait for what the event marks."""
        mark = self.events.find(event)
        self._hosts.check()
        try:
            self._library(self._library.cu.cuEventSynchronize, mark)
        except Answer as answer:
            raise _of_ended_capture(answer, event) from None
        self._hosts.check()

    def elapsed(self, start: EventHandle, end: EventHandle) -> float:
        """Return the milliseconds between two events that are done."""
        marks = self.events.find(start), self.events.find(end)
        cu = self._library.cu
        if not self._timed.issuperset((start, end)):
            raise Result.INVALID_HANDLE.refusal(
                f"event {start:#x} or {end:#x} cannot tell time: create both with "
                "timing"
            )
        try:
            found: float = self._library(cu.cuEventElapsedTime, *marks)
        except Answer as answer:
            if answer.result is Result.CAPTURED_EVENT:
                for mark in marks:  # asking for the time leaves the capture valid
                    cu.cuEventQuery(mark)
            if answer.result is Result.INVALID_HANDLE:
                raise Result.NOT_READY.refusal(
                    f"event {start:#x} or {end:#x} was never recorded: record both and "
                    "synchronize with them before measuring"
                ) from None
            raise
        return found

    # Captures.

    def begin_capture(self, stream: StreamHandle) -> None:
        """Record what the stream is given, instead of running it."""
        raw = self.streams.find(stream)
        self._hosts.check()
        cu = self._library.cu
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        with self._turn:
            if self._status(raw) is CaptureStatus.NONE:
                self._leave(raw)
            self._library(cu.cuStreamBeginCapture, raw, mode)
            self.origins[stream] = threading.get_ident()

    def end(self, stream: StreamHandle) -> Any:
        """End the capture that began on the stream, and return its graph."""
        raw = self.streams.find(stream)
        thread = self.origins.get(stream)
        if thread is None and self._status(raw) is not CaptureStatus.NONE:
            raise Result.STREAM_CAPTURE_UNMATCHED.refusal(
                f"the capture did not begin on stream {stream:#x}: end it where it "
                "began"
            )
        if thread not in {None, threading.get_ident()}:
            raise Result.STREAM_CAPTURE_WRONG_THREAD.refusal(
                "the capture began on another thread: end it there"
            )
        self.origins.pop(stream, None)
        return self._library(self._library.cu.cuStreamEndCapture, raw)

    def capture_status(self, stream: StreamHandle) -> CaptureStatus:
        """Return whether the stream is capturing."""
        raw = self.streams.find(stream)
        if stream in self.streams.foreign:
            with self._place.here():
                return self._status(raw)
        return self._status(raw)

    def counter(self, stream: StreamHandle) -> Callable[[], int]:
        """Return what counts the nodes of the capture that the stream is in."""
        library, raw = self._library, self.streams.find(stream)
        status, _, graph, *_ = library(library.cu.cuStreamGetCaptureInfo, raw)
        if self._statuses[status] is not CaptureStatus.ACTIVE:
            raise Result.ILLEGAL_STATE.refusal(
                f"stream {stream:#x} is not capturing: begin first"
            )
        return _counter_of(library, graph)

    def captured(self, stream: StreamHandle) -> tuple[Any, list[Any]] | None:
        """Return the graph that a stream is captured into, and what comes before.

        None where it is not capturing.
        """
        library, raw = self._library, self.streams.find(stream)
        self._hosts.check()
        if self._status(raw) is CaptureStatus.NONE:
            return None
        status, _, graph, before, *_ = library(library.cu.cuStreamGetCaptureInfo, raw)
        if self._statuses[status] is not CaptureStatus.ACTIVE:
            raise Result.STREAM_CAPTURE_INVALIDATED.refusal(
                f"the capture of stream {stream:#x} was invalidated: end it, and "
                "capture anew"
            )
        return graph, before

    def _event(self, timing: bool = False) -> Any:
        cu = self._library.cu
        of = cu.CUevent_flags
        flags = of.CU_EVENT_DEFAULT if timing else of.CU_EVENT_DISABLE_TIMING
        return self._library(cu.cuEventCreate, flags)

    def _leave(self, raw: Any) -> Any | None:
        """Return a mark of the stream's work so far, which is left; None if done."""
        cu = self._library.cu
        if cu.cuStreamQuery(raw)[0] != Result.NOT_READY:
            return None
        mark = self._event()
        self._library(cu.cuEventRecord, mark, raw)
        self._left.append(mark)
        return mark

    def _status(self, raw: Any) -> CaptureStatus:
        try:
            found = self._library(self._library.cu.cuStreamIsCapturing, raw)
        except Answer as answer:
            if answer.result is not Result.STREAM_CAPTURE_IMPLICIT:
                raise
            return CaptureStatus.ACTIVE  # of a stream that the default one waits for
        return self._statuses[found]

    def _is_done(self, ask: Callable[..., Any], of: Any) -> bool:
        self._hosts.check()
        code = ask(of)[0]
        if code and code != Result.NOT_READY:
            raise self._library.answer(ask, code)
        return not code

    def _invalidate(self, raw: Any, doing: str) -> None:
        """Invalidate a stream's capture, and raise the reason."""
        try:
            self._library(self._library.cu.cuStreamSynchronize, raw)
        except Answer as answer:
            if answer.result is not Result.STREAM_CAPTURE_UNSUPPORTED:
                raise
            raise answer.result.refusal(
                f"cannot {doing} a stream while it is capturing: do so before or after "
                "the capture"
            ) from None

    def _lose(self, stream: StreamHandle, raw: Any) -> None:
        """Let the capture of a stream that goes end, or know that it lost one."""
        library, cu = self._library, self._library.cu
        if self.origins.pop(stream, None) is None:
            cu.cuStreamSynchronize(raw)  # is refused, and that invalidates
            return
        code, graph = cu.cuStreamEndCapture(raw)
        if not code:
            library(cu.cuGraphDestroy, graph)


def _of_ended_capture(answer: Answer, event: EventHandle) -> Refusal:
    """Return what is wrong with an event that CUDA knows and calls invalid."""
    if answer.result is not Result.INVALID_VALUE:
        return answer
    return Result.CAPTURED_EVENT.refusal(
        f"event {event:#x} was recorded in a capture that has ended: record it again"
    )
