"""Streams and events as objects that own their handles.

A stream is made current with ``with stream:``, per thread and per task. Handles are
destroyed by whoever drains `Stream.dropped`, never inside a finaliser. Work outlives
its stream: whoever remembers one that is gone waits for its successor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, Protocol, Self

from sapwood.driver.api import Driver, EventHandle, StreamHandle
from sapwood.driver.release import Release
from sapwood.errors import DriverError, MisuseError
from sapwood.surroundings import follow

_VERSION: Final = 0
"""Of ``__cuda_stream__``, by which libraries say what they call a stream."""

_marking = threading.Lock()
_stack: ContextVar[tuple[Stream, ...]] = ContextVar("sapwood_streams", default=())
_fork: ContextVar[Fork | None] = ContextVar("sapwood_fork", default=None)
follow(_stack)
follow(_fork)


def raw_of(stream: object) -> int:
    """Return what a stream of any library is called, for `Driver.adopt_stream`.

    It is that number, or has ``__cuda_stream__``, which says ``(0, number)``. Raises
    `MisuseError` for anything else.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    told = getattr(stream, "__cuda_stream__", None)
    answer = told() if callable(told) else told
    match answer:
        case (int(version), int(raw)) if version == _VERSION:
            return raw
        case (int(version), int(_)):
            raise MisuseError(
                f"{stream!r} speaks version {version} of __cuda_stream__: use a "
                f"release of its library that speaks version {_VERSION}"
            )
    raise MisuseError(
        f"{stream!r} is no stream: pass a CUstream as a number, or an object whose "
        f"__cuda_stream__() returns ({_VERSION}, that number)"
    )


def current_stream(driver: Driver) -> Stream | None:
    """Return the innermost ``with stream:`` of this driver, if any."""
    for stream in reversed(_stack.get()):
        if stream.driver is driver:
            return stream
    return None


class Queue(Protocol):
    """Where finalisers put what they give back, as ``(give_back, what)``."""

    append: Callable[[tuple[Callable[[Any], None], Any]], None]


class Event:
    """A place in a stream's order, once it is recorded.

    Until then it has no handle and is done, and waiting for it does nothing. Only one
    with ``timing`` can tell time. ``part`` is that of the capture it was recorded in.
    """

    __slots__ = ("driver", "dropped", "handle", "part", "timing")

    def __init__(self, driver: Driver, dropped: Queue, *, timing: bool = False) -> None:
        self.driver, self.dropped, self.timing = driver, dropped, timing
        self.handle: EventHandle | None = None
        self.part: object | None = None

    def __del__(self) -> None:
        if self.handle is not None:
            self.dropped.append((self.driver.destroy_event, self.handle))

    def record(self, stream: Stream) -> None:
        """Mark all work given to a stream so far, and no longer what was before.

        Raises `MisuseError` for a stream of another device.
        """
        _check_device(stream, self.driver)
        if self.handle is None:
            self.handle = self.driver.create_event(self.timing)
        self.driver.record_event(self.handle, stream.handle)
        self.part = _part()

    def query(self) -> bool:
        """Return whether the work before the event is done."""
        return self.handle is None or self.driver.query_event(self.handle)

    def synchronize(self) -> None:
        """Wait until the work before the event is done."""
        if self.handle is not None:
            self.driver.synchronize_event(self.handle)

    def elapsed(self, end: Event) -> float:
        """Return the milliseconds from this event to ``end``.

        Raises `MisuseError` unless both are of one device, have timing, and are done.
        """
        _check_device(end, self.driver)
        return self.driver.elapsed(_timed(self), _timed(end))

    def __repr__(self) -> str:
        state = "not recorded" if self.handle is None else f"{self.handle:#x}"
        return f"<Event {state}{', with timing' if self.timing else ''}>"


class Stream:
    """A queue of device work that runs in order.

    ``with stream:`` makes it current. ``dropped`` receives ``(end, stream)`` when it is
    garbage. What was made on it may still name it then, in a cycle with it: for them
    ``successor`` stands in, a stream of the same device that ends after it. Streams
    without one are those that nobody waits for once they are gone.
    """

    __slots__ = (
        "__weakref__",
        "_marker",
        "driver",
        "dropped",
        "ended",
        "fork",
        "handle",
        "name",
        "successor",
    )

    def __init__(
        self,
        driver: Driver,
        handle: StreamHandle,
        name: str,
        dropped: Queue,
        successor: Stream | None = None,
    ) -> None:
        self.driver, self.handle, self.name = driver, handle, name
        self.dropped, self.successor = dropped, successor
        self._marker: EventHandle | None = None
        self.fork: Fork | None = None
        self.ended = False

    def __del__(self) -> None:
        self.dropped.append((Stream.end, self))

    def end(self) -> None:
        """Destroy the handle; from now on the successor's, who is after all its work.

        Raises `DriverError`, when that is done, where the order could not be handed
        on: then the work was waited for.
        """
        driver, handle, successor = self.driver, self.handle, self.successor
        with Release() as release:
            # A successor that has ended went with its device, when all work was over.
            if successor is not None and not successor.ended:
                release(self._bequeath, successor)
                self.handle = successor.handle
            self.ended = True
            if self._marker is not None:
                release(driver.destroy_event, self._marker)
            release(driver.destroy_stream, handle)

    def _bequeath(self, successor: Stream) -> None:
        # The wait stays when its event, and the stream that it marks, are destroyed.
        try:
            self.driver.wait_event(successor.handle, self.mark())
        except DriverError:
            self.driver.synchronize_stream(self.handle)
            raise

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return ``(0, CUstream)``, by which other libraries take a stream.

        Raises `MisuseError` on a device that is not CUDA's.
        """
        self._check_live()
        if self.driver.abilities.kind != "cuda":
            raise MisuseError(
                f"stream {self.name} is one of {self.driver.abilities.name}, which "
                "CUDA does not know: use it with arrays of this library"
            )
        return 0, self.driver.raw_stream(self.handle)

    def __enter__(self) -> Self:
        self._check_live()
        _join_fork(self)
        _stack.set((*_stack.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        stack = _stack.get()
        if not stack or stack[-1] is not self:
            raise MisuseError(
                f"stream {self.name} is not the current one: leave `with stream:` "
                "blocks in the reverse order of entering them"
            )
        _stack.set(stack[:-1])

    def wait(self, other: Stream | Event) -> None:
        """Order further work of this stream after ``other``.

        A stream means all work given to it so far, an event that was never recorded
        nothing. Raises `MisuseError` for those of another device.
        """
        self._check_live()
        _check_device(other, self.driver)
        _join_fork(self)
        if isinstance(other, Event):
            if other.part is not None and other.part is not _part():
                return  # that capture is over: what was in it is ordered as a whole
            if other.handle is not None:
                self.driver.wait_event(self.handle, other.handle)
        elif other is not self:
            other._check_live()  # noqa: SLF001 -- its own kind
            _join_fork(other)
            self.driver.wait_event(self.handle, other.mark())

    def mark(self) -> EventHandle:
        """Record the event that other streams wait for, and return it."""
        if self.ended and self.successor is not None:
            return self.successor.mark()
        # One event serves all waits: a wait binds to the record before it.
        if self._marker is None:
            with _marking:
                if self._marker is None:
                    self._marker = self.driver.create_event()
        self.driver.record_event(self._marker, self.handle)
        return self._marker

    def record(self, event: Event | None = None, *, timing: bool = False) -> Event:
        """Return an event that marks all work given to this stream so far.

        That is ``event`` where one is given, else a new one, with ``timing`` for
        `Event.elapsed`.
        """
        self._check_live()
        _join_fork(self)
        if event is None:
            event = Event(self.driver, self.dropped, timing=timing)
        event.record(self)
        return event

    def query(self) -> bool:
        """Return whether all work given to this stream is done."""
        self._check_live()
        return self.driver.query_stream(self.handle)

    def synchronize(self) -> None:
        """Wait until all work given to this stream is done."""
        if self.ended and self.successor is None:
            # When a process ends, a stream may go before what was made on it.
            self.driver.synchronize()
        else:
            self.driver.synchronize_stream(self.handle)

    def _check_live(self) -> None:
        if self.ended and self.successor is None:
            raise MisuseError(
                f"stream {self.name} was destroyed: make a new one, on an open runtime"
            )

    def __repr__(self) -> str:
        return f"<Stream {self.name} of {self.driver.abilities.name}>"


class Fork:
    """The streams that take part in one capture, and who uses what inside it.

    A stream that the captured function enters, or waits for, is forked from
    ``origin``; `join` brings all back. ``uses`` stands in for the writer and the
    readers that a storage knows of, which capturing must leave as they were. ``part``
    tells the captures of one fork apart.
    """

    def __init__(self, origin: Stream) -> None:
        self.origin = origin
        self.members = [origin]
        self.part = object()
        self.uses: dict[int, tuple[Stream | None, tuple[Stream, ...]]] = {}

    def __enter__(self) -> Self:
        self.origin.fork = self
        self._token = _fork.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _fork.reset(self._token)
        self.leave()

    def again(self) -> None:
        """Begin anew, for another capture of the origin while this one is entered.

        The streams that are current inside take part.
        """
        stack = _stack.get()
        self.members, self.uses, self.part = [self.origin], {}, object()
        self.origin.fork = self
        for stream in stack[stack.index(self.origin) + 1 :]:
            _join_fork(stream)

    def leave(self) -> None:
        """Let go of the streams that took part; the capture is over."""
        for stream in self.members:
            stream.fork = None

    def add(self, stream: Stream) -> None:
        """Bring a stream into the capture."""
        stream.fork = self
        self.members.append(stream)
        stream.driver.wait_event(stream.handle, self.origin.mark())

    def join(self) -> None:
        """Order the origin after every stream that took part."""
        for stream in self.members[1:]:
            self.origin.driver.wait_event(self.origin.handle, stream.mark())


class outside:
    """``with outside(fork):`` neither a capture nor its streams are current."""

    def __init__(self, fork: Fork) -> None:
        self.fork = fork

    def __enter__(self) -> None:
        stack = _stack.get()
        self._tokens = (
            _fork.set(None),
            _stack.set(stack[: stack.index(self.fork.origin)]),
        )

    def __exit__(self, *_: object) -> None:
        fork, stack = self._tokens
        _fork.reset(fork)
        _stack.reset(stack)


def _check_device(other: Stream | Event, driver: Driver) -> None:
    if other.driver is not driver:
        raise MisuseError(
            f"{other!r} is one of another device, {other.driver.abilities.name}: order "
            "work of different devices on the host, with synchronize()"
        )


def _timed(event: Event) -> EventHandle:
    """Return the handle of an event whose time can be told."""
    if not event.timing:
        lack, remedy = "cannot tell time", "make it with timing=True"
    elif event.handle is None:
        lack, remedy = "was never recorded", "record it on a stream"
    elif not event.query():
        lack, remedy = "is not done", "synchronize with it"
    else:
        return event.handle
    raise MisuseError(f"{event!r} {lack}: {remedy} before measuring")


def _part() -> object | None:
    fork = _fork.get()
    return None if fork is None else fork.part


def _join_fork(stream: Stream) -> None:
    fork = _fork.get()
    if fork is not None and stream.fork is not fork:
        fork.add(stream)
