"""Streams and events as objects that own their handles.

A stream is made current with ``with stream:``, per thread and per task. Handles are
destroyed by whoever drains `Stream.dropped`, never inside a finaliser. Work outlives
its stream: whoever remembers one that is gone waits for its heir.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol, Self

from sapwood.driver.api import Driver, EventHandle, StreamHandle
from sapwood.driver.release import Release
from sapwood.errors import DriverError, MisuseError

__all__ = ["Event", "Fork", "Queue", "Stream", "current_stream", "outside"]

_marking = threading.Lock()
_stack: ContextVar[tuple[Stream, ...]] = ContextVar("sapwood_streams", default=())
_fork: ContextVar[Fork | None] = ContextVar("sapwood_fork", default=None)


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
    """A place in a stream's order; ``part`` is that of the capture it was made in."""

    __slots__ = ("driver", "dropped", "handle", "part")

    def __init__(
        self,
        driver: Driver,
        handle: EventHandle,
        dropped: Queue,
        part: object | None = None,
    ) -> None:
        self.driver, self.handle, self.dropped = driver, handle, dropped
        self.part = part

    def __del__(self) -> None:
        self.dropped.append((self.driver.destroy_event, self.handle))

    def query(self) -> bool:
        """Return whether the work before the event is done."""
        return self.driver.query_event(self.handle)

    def synchronize(self) -> None:
        """Wait until the work before the event is done."""
        self.driver.synchronize_event(self.handle)

    def elapsed(self, end: Event) -> float:
        """Return the milliseconds from this event to ``end``; both must be done."""
        return self.driver.elapsed(self.handle, end.handle)


class Stream:
    """A queue of device work that runs in order.

    ``with stream:`` makes it current. ``dropped`` receives ``(end, stream)`` when it is
    garbage. What was made on it may still name it then, in a cycle with it: for them
    ``heir`` stands in, a stream of the same device that ends after it. Streams without
    one are those that nobody waits for once they are gone.
    """

    __slots__ = (
        "__weakref__",
        "_marker",
        "driver",
        "dropped",
        "ended",
        "fork",
        "handle",
        "heir",
        "name",
    )

    def __init__(
        self,
        driver: Driver,
        handle: StreamHandle,
        name: str,
        dropped: Queue,
        heir: Stream | None = None,
    ) -> None:
        self.driver, self.handle, self.name = driver, handle, name
        self.dropped, self.heir = dropped, heir
        self._marker: EventHandle | None = None
        self.fork: Fork | None = None
        self.ended = False

    def __del__(self) -> None:
        self.dropped.append((Stream.end, self))

    def end(self) -> None:
        """Destroy the handle; from now on the heir's, who is after all its work.

        Raises `DriverError`, when that is done, where the order could not be handed
        on: then the work was waited for.
        """
        driver, handle, heir = self.driver, self.handle, self.heir
        with Release() as release:
            # An heir that has ended went with its device, when all work was over.
            if heir is not None and not heir.ended:
                release(self._bequeath, heir)
                self.handle = heir.handle
            self.ended = True
            if self._marker is not None:
                release(driver.destroy_event, self._marker)
            release(driver.destroy_stream, handle)

    def _bequeath(self, heir: Stream) -> None:
        # The wait stays when its event, and the stream that it marks, are destroyed.
        try:
            self.driver.wait_event(heir.handle, self.mark())
        except DriverError:
            self.driver.synchronize_stream(self.handle)
            raise

    def __enter__(self) -> Self:
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

        A stream means all work given to it so far.
        """
        _join_fork(self)
        if isinstance(other, Event):
            if other.part is not None and other.part is not _part():
                return  # that capture is over: what was in it is ordered as a whole
            self.driver.wait_event(self.handle, other.handle)
        elif other is not self:
            _join_fork(other)
            self.driver.wait_event(self.handle, other.mark())

    def mark(self) -> EventHandle:
        """Record the event that other streams wait for, and return it."""
        if self.ended and self.heir is not None:
            return self.heir.mark()
        # One event serves all waits: a wait binds to the record before it.
        if self._marker is None:
            with _marking:
                if self._marker is None:
                    self._marker = self.driver.create_event()
        self.driver.record_event(self._marker, self.handle)
        return self._marker

    def record(self) -> Event:
        """Return an event that marks all work given to this stream so far."""
        _join_fork(self)
        handle = self.driver.create_event()
        event = Event(self.driver, handle, self.dropped, _part())
        self.driver.record_event(event.handle, self.handle)
        return event

    def query(self) -> bool:
        """Return whether all work given to this stream is done."""
        return self.driver.query_stream(self.handle)

    def synchronize(self) -> None:
        """Wait until all work given to this stream is done."""
        if self.ended and self.heir is None:
            # When a process ends, a stream may go before what was made on it.
            self.driver.synchronize()
        else:
            self.driver.synchronize_stream(self.handle)

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"


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


def _part() -> object | None:
    fork = _fork.get()
    return None if fork is None else fork.part


def _join_fork(stream: Stream) -> None:
    fork = _fork.get()
    if fork is not None and stream.fork is not fork:
        fork.add(stream)
