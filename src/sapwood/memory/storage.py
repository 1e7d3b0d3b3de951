"""One allocation of device memory, shared by all arrays that view it.

A finaliser may run anywhere, inside any lock: it only appends to a queue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from sapwood._fast.state import StreamEpoch
from sapwood.driver.streams import Queue, Stream
from sapwood.errors import StaleOutput
from sapwood.units import Addr, Size

STREAM_EPOCH: Final = StreamEpoch()
"""Its `now` changes whenever some bytes get a user on another stream, or are revoked.

While each storage is used by one stream, it stays: who has ordered a stream after all
uses of some bytes need not do so again before `now` is another number.
"""

# Reentrant: a finaliser may call use_on while its thread is inside of it.
_using: Final = threading.RLock()


class Token(Protocol):
    """Whatever a storage gives back when the last array that views it is gone."""

    def ended(self, streams: tuple[Stream, ...]) -> None:
        """Take the bytes back; work on ``streams`` may still be using them."""


class Owned:
    """The token of bytes that a call takes back, told the streams that use them."""

    __slots__ = ("ended",)

    def __init__(self, take_back: Callable[[tuple[Stream, ...]], None]) -> None:
        self.ended = take_back


class Unowned:
    """The token of bytes that somebody else gives back, in an order of their own."""

    def ended(self, streams: tuple[Stream, ...]) -> None:
        """Take back nothing."""


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Storage:
    """Bytes ``[address, address + size)``, whose they are, and who uses them.

    ``writer`` is the stream that wrote last, ``readers`` the streams that are
    ordered after that write, ``stream_uses`` those that use the bytes besides, until
    they are given back, in an order that is their own affair. ``stale`` says why the
    bytes may not be used any more, ``remedy`` what to do about it. ``writes`` is how
    often somebody has begun to write them.
    ``captured`` bytes were allocated while capturing, for what is captured alone.
    ``trap`` has a framework refuse its arrays over bytes that are stale.
    """

    address: Addr
    size: Size
    token: Token
    captured: bool = field(default=False, kw_only=True)
    writer: Stream | None = field(default=None, init=False)
    readers: tuple[Stream, ...] = field(default=(), init=False)
    stream_uses: tuple[Stream, ...] = field(default=(), init=False)
    writes: int = field(default=0, init=False)
    stale: str | None = field(default=None, init=False)
    trap: Callable[[Storage], None] | None = field(default=None, init=False)
    remedy: str = field(
        default="Copy it before, or name it in step(keep=...)", init=False
    )
    # Last, so that __init__ assigns it last: a storage that has it is complete, and
    # __del__ may give its bytes back.
    dropped: Queue

    def __del__(self) -> None:
        try:
            dropped = self.dropped
        except AttributeError:
            return  # an interrupt came before it was anything's
        dropped.append((self.token.ended, self.users()))

    def users(self) -> tuple[Stream, ...]:
        """Return the streams whose work may still be using these bytes."""
        return (*self._ordered(), *self.stream_uses)

    def _ordered(self) -> tuple[Stream, ...]:
        return self.readers if self.writer is None else (self.writer, *self.readers)

    def use_on(self, stream: Stream) -> None:
        """Count ``stream`` among the users until the bytes are given back.

        Only whoever gets the bytes next waits for it: reads and writes of this storage
        do not. Any thread that holds the storage may call it.
        """
        with _using:
            if stream in self.stream_uses:
                return
            self.stream_uses = (*self.stream_uses, stream)
        if stream is not self.writer:
            STREAM_EPOCH.advance()

    def revoke(self, why: str) -> None:
        """Make each later use of the bytes raise `StaleOutput`, which says ``why``."""
        self.stale = why
        if self.trap is not None:
            self.trap(self)

    def check(self) -> None:
        """Raise `StaleOutput` where the bytes were revoked or donated."""
        refusal = self.refusal()
        if refusal is not None:
            raise refusal

    def refusal(self) -> StaleOutput | None:
        """Return the error that a use of the bytes raises; None if they are valid."""
        if self.stale is None:
            return None
        what = f"this array of {self.size} bytes"
        return StaleOutput(what, self.stale, self.remedy)

    def order_read(self, stream: Stream) -> None:
        """Order further work of ``stream`` after the last write of these bytes."""
        writer, readers = self._uses(stream)
        if writer is stream or stream in readers:
            return
        if writer is not None:
            stream.wait(writer)
        self._used(stream, writer, (*readers, stream))

    def order_write(self, stream: Stream) -> None:
        """Order further work of ``stream`` after all uses of these bytes."""
        self.writes += 1
        writer, readers = self._uses(stream)
        for other in readers if writer is None else (writer, *readers):
            if other is not stream:
                stream.wait(other)
        self._used(stream, stream, ())

    def _uses(self, stream: Stream) -> tuple[Stream | None, tuple[Stream, ...]]:
        if stream.fork is None or self.captured:
            return self.writer, self.readers
        # Inside a capture only what is captured counts: the replay as a whole is
        # ordered after everything before it.
        return stream.fork.uses.get(id(self), (None, ()))

    def _used(
        self, stream: Stream, writer: Stream | None, readers: tuple[Stream, ...]
    ) -> None:
        if stream.fork is None or self.captured:
            if any(other is not stream for other in self._ordered()):
                STREAM_EPOCH.advance()
            self.writer, self.readers = writer, readers
        else:
            stream.fork.uses[id(self)] = (writer, readers)
