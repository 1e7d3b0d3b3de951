"""What a device must know of the framework whose arrays are on it.

A framework that launches its own work has its own idea of which stream is current,
and its own allocator. `Plain` is for arrays that ask the device for both.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from sapwood.driver.api import Driver, StreamHandle
from sapwood.driver.streams import Queue, Stream, current_stream
from sapwood.memory.storage import Storage
from sapwood.units import Size

__all__ = ["Allocate", "Framework", "Manner", "Plain"]

Allocate = Callable[[Size], Storage]
"""`Device.allocate`, or what stands in for it."""


class Framework(Protocol):
    """One framework's streams, and how its work is watched."""

    @property
    def traps(self) -> bool:
        """Whether every use of an array can be refused, once its output has ended."""
        ...

    def default(self, driver: Driver, dropped: Queue) -> Stream:
        """Return the stream that work is given to where none is current."""
        ...

    def stream(
        self,
        driver: Driver,
        handle: StreamHandle,
        name: str,
        dropped: Queue,
        heir: Stream | None = None,
    ) -> Stream:
        """Return a stream over a handle; ``with`` it, the framework's work goes there.

        The arguments are those of `Stream`.
        """
        ...

    def current(self, driver: Driver, dropped: Queue) -> Stream | None:
        """Return this thread's current stream; None where it is the default."""
        ...

    def lasting(self, driver: Driver, dropped: Queue) -> Stream | None:
        """Return one of the framework's own streams; None where it takes any.

        It does not where it never forgets a stream that it was used with.
        """
        ...

    def trim(self) -> Size:
        """Give back memory that the framework keeps for later; return how much."""
        ...

    def included(self) -> bool:
        """Return whether what this thread does becomes a part of something of others.

        They capture its current stream, or are told of each operation. Asked where this
        library itself does neither.
        """
        ...

    def prime(self) -> None:
        """Make what this thread needs once, and cannot make in a capture."""

    def chance(self) -> Callable[[], object]:
        """Return what puts random numbers back to where they are now.

        Those are meant that the framework draws by itself, of no array.
        """
        ...

    def close(self) -> None:
        """Let go of all streams."""

    def watched(self, allocate: Allocate) -> AbstractContextManager[object]:
        """Return a context in which this thread's allocations go to ``allocate``.

        What the framework does there that no recording could repeat is told to the
        session in progress.
        """
        ...

    def resting(self) -> AbstractContextManager[object]:
        """Return a context, inside of `watched`, in which nothing is watched.

        Work there goes to the stream that was current outside, unless that is a
        capture's: whoever pauses one sees to that.
        """
        ...

    def manner(self) -> Manner:
        """Return what makes contexts in which work is done as it would be just now.

        Those are meant of the framework's modes that a function may be in.
        """
        ...


class Manner:
    """How a framework works at one moment; as always, where it has no modes.

    Called, it gives a context in the modes of that moment.
    """

    def __call__(self) -> AbstractContextManager[object]:
        """Return a context that changes nothing."""
        return nullcontext()

    def strange(self, outer: Manner) -> str | None:
        """Name a mode that was another in an outer manner, and that no context sets."""
        del outer
        return None


class Plain:
    """Arrays that ask their device for streams and memory, and trap every use."""

    traps = True

    def default(self, driver: Driver, dropped: Queue) -> Stream:
        """Return a stream of the device's own."""
        return self.stream(driver, driver.create_stream(), "default", dropped)

    def stream(
        self,
        driver: Driver,
        handle: StreamHandle,
        name: str,
        dropped: Queue,
        heir: Stream | None = None,
    ) -> Stream:
        """Return a stream over a handle."""
        return Stream(driver, handle, name, dropped, heir)

    def current(self, driver: Driver, dropped: Queue) -> Stream | None:
        """Return the innermost ``with stream:`` of this driver, if any."""
        del dropped
        return current_stream(driver)

    def lasting(self, driver: Driver, dropped: Queue) -> Stream | None:
        """Return None: a stream is forgotten when it goes."""
        del driver, dropped
        return None

    def trim(self) -> Size:
        """Return 0: all memory is the device's."""
        return Size(0)

    def included(self) -> bool:
        """Return False: whoever captures does so by this library."""
        return False

    def prime(self) -> None:
        """Make nothing: captures do not differ."""

    def chance(self) -> Callable[[], object]:
        """Return what does nothing: the state of generators is an array."""
        return int

    def close(self) -> None:
        """Let go of nothing: streams are known while somebody has them."""

    def watched(self, allocate: Allocate) -> AbstractContextManager[object]:
        """Return a context that changes nothing: it is the device that is asked."""
        del allocate
        return nullcontext()

    def resting(self) -> AbstractContextManager[object]:
        """Return a context that changes nothing."""
        return nullcontext()

    def manner(self) -> Manner:
        """Return what makes contexts that change nothing: there are no modes."""
        return Manner()
