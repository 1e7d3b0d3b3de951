"""What a device must know of the framework whose arrays are on it.

A framework that launches its own work has its own idea of which stream is current,
and its own allocator. `Framework` itself is for arrays that ask the device for both.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Self
from weakref import WeakValueDictionary

from sapwood.driver.api import Driver, StreamHandle
from sapwood.driver.streams import Queue, Stream, current_stream
from sapwood.errors import DriverError, InternalError
from sapwood.memory.storage import Storage
from sapwood.units import Addr, Size

Allocate = Callable[[Size], Storage]
"""`Device.allocate`, or what stands in for it."""


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


class Framework:
    """One framework's streams, and how its work is watched.

    This one is that of arrays that ask their device for streams and memory, and trap
    every use. ``traps``: whether every use of an array can be refused, once its output
    has ended. ``most_copies``: so many outputs the framework may copy, one by one; for
    more, one copy of all of them costs less.
    """

    traps = True
    most_copies = sys.maxsize

    def default(self, driver: Driver, dropped: Queue) -> Stream:
        """Return the stream that work is given to where none is current."""
        return self.stream(driver, driver.create_stream(), "default", dropped)

    def stream(
        self,
        driver: Driver,
        handle: StreamHandle,
        name: str,
        dropped: Queue,
        successor: Stream | None = None,
    ) -> Stream:
        """Return a stream over a handle; ``with`` it, the framework's work goes there.

        The arguments are those of `Stream`.
        """
        return Stream(driver, handle, name, dropped, successor)

    def current(self, driver: Driver, dropped: Queue) -> Stream | None:
        """Return this thread's current stream; None where it is the default."""
        del dropped
        return current_stream(driver)

    def lasting(self, driver: Driver, dropped: Queue) -> Stream | None:
        """Return one of the framework's own streams; None where it takes any.

        It does not where it never forgets a stream that it was used with.
        """
        del driver, dropped
        return None

    def trim(self) -> Size:
        """Give back memory that the framework keeps for later; return how much."""
        return Size(0)

    def included(self) -> bool:
        """Return whether what this thread does becomes a part of something of others.

        They capture its current stream, or are told of each operation. Asked where this
        library itself does neither.
        """
        return False

    def copier(
        self, layout: Any, address: Addr, size: Size, room: Callable[[], bool]
    ) -> Callable[[], Any] | None:
        """Return what copies an array, first and alone in some bytes, by the framework.

        Where the framework has no memory for it, ``room`` makes some, if it can.

        None where it would be none like it, or where the framework has no memory.
        """
        del layout, address, size, room
        return None

    def forms(self, arrays: Sequence[Any]) -> list[Callable[[Any], object]]:
        """Return, of each array, what gives one the looks and memory that this has now.

        None of them where no array can be given others in place.
        """
        del arrays
        return []

    def remembered(self) -> Iterable[object]:
        """Return what the framework has kept for calls to come, that ops may use.

        Arrays of the memory in there, and whatever else is to live as long as they.
        """
        return ()

    def prime(self) -> None:
        """Make what this thread needs once, and cannot make in a capture."""

    def chance(self) -> Callable[[], object]:
        """Return what puts random numbers back to where they are now.

        Those are meant that the framework draws by itself, of no array.
        """
        return int

    def chance_on_host(self) -> Callable[[], object]:
        """Return the same for numbers that it draws on the host."""
        return int

    def close(self) -> None:
        """Let go of all streams."""

    def watched(self, allocate: Allocate) -> AbstractContextManager[object]:
        """Return a context in which this thread's allocations go to ``allocate``.

        What the framework does there that no recording could repeat is told to the
        session in progress.
        """
        del allocate
        return nullcontext()

    def resting(self) -> AbstractContextManager[object]:
        """Return a context, inside of `watched`, in which nothing is watched.

        Work there goes to the stream that was current outside, unless that is a
        capture's: whoever pauses one sees to that.
        """
        return nullcontext()

    def manner(self) -> Manner:
        """Return what makes contexts in which work is done as it would be just now.

        Those are meant of the framework's modes that a function may be in.
        """
        return Manner()


class GuestFramework(Framework, ABC):
    """A framework's streams on one GPU, known by their raw numbers.

    ``made`` are those of this library that were current there, as long as they live;
    ``adopted`` the framework's own. What is abstract here has a default in `Framework`
    that is right only where the device serves streams and memory.
    """

    traps = False

    def __init__(self) -> None:
        self.made: WeakValueDictionary[int, Stream] = WeakValueDictionary()
        self.adopted: dict[int, GuestStream] = {}
        self._adopting = threading.RLock()

    @abstractmethod
    def raw(self) -> int:
        """Return the number of this thread's current stream."""

    @abstractmethod
    def inside(self, stream: GuestStream) -> tuple[int, AbstractContextManager[Any]]:
        """Return a stream's number here, and what it is the current one inside of."""

    @abstractmethod
    def adopt_current(self, raw: int, driver: Driver, dropped: Queue) -> Stream:
        """Return the current stream, which is the framework's own, by `adopt`."""

    def stream(
        self,
        driver: Driver,
        handle: StreamHandle,
        name: str,
        dropped: Queue,
        successor: Stream | None = None,
    ) -> GuestStream:
        """Return a stream over a handle."""
        return GuestStream(self, driver, handle, name, dropped, successor)

    def known(self, raw: int) -> Stream | None:
        """Return the stream of a number, if it was used before."""
        return self.adopted.get(raw) or self.made.get(raw)

    def current(self, driver: Driver, dropped: Queue) -> Stream:
        """Return this thread's current stream, whoever made it."""
        raw = self.raw()
        return self.known(raw) or self.adopt_current(raw, driver, dropped)

    def adopt(self, raw: int, name: str, driver: Driver, dropped: Queue) -> GuestStream:
        """Return a stream of the framework's own, known from now on."""
        # Two Stream objects over one handle: the first to be dropped would destroy it.
        with self._adopting:
            found = self.adopted.get(raw)
            if found is None:
                found = self.stream(driver, driver.adopt_stream(raw), name, dropped)
                self.adopted[raw] = found
            return found

    @abstractmethod
    def default(self, driver: Driver, dropped: Queue) -> Stream:
        """Return the framework's default stream, by `adopt`."""

    @abstractmethod
    def trim(self) -> Size:
        """Give back memory that the framework keeps for later; return how much."""

    @abstractmethod
    def included(self) -> bool:
        """Return whether what this thread does becomes a part of something of others.

        As in `Framework`.
        """

    @abstractmethod
    def prime(self) -> None:
        """Make what this thread needs once, and cannot make in a capture."""

    @abstractmethod
    def watched(self, allocate: Allocate) -> AbstractContextManager[object]:
        """Return a context in which allocations and forbidden work are noticed."""

    @abstractmethod
    def resting(self) -> AbstractContextManager[object]:
        """Return a context, inside of `watched`, in which nothing is watched."""

    def close(self) -> None:
        """Let go of all streams."""
        self.adopted.clear()
        self.made.clear()


class _Entered(threading.local):
    """The streams that a thread is inside of: several may be inside of one."""

    def __init__(self) -> None:
        self.within: list[tuple[Stream, Any, bool]] = []

    def leave(self, stream: Stream) -> tuple[Any, bool]:
        """Forget the last time that the stream was entered; return what that was."""
        for number in reversed(range(len(self.within))):
            if self.within[number][0] is stream:
                _, inside, aside = self.within.pop(number)
                return inside, aside
        raise InternalError(f"a stream is left where it was entered: {stream!r}")


_entered: Final = _Entered()


class GuestStream(Stream):
    """A stream; ``with stream:`` makes it the framework's current one.

    ``theirs`` is what the framework has made of it, which that looks after.
    """

    __slots__ = ("framework", "theirs")

    def __init__(
        self,
        framework: GuestFramework,
        driver: Driver,
        handle: StreamHandle,
        name: str,
        dropped: Queue,
        successor: Stream | None = None,
    ) -> None:
        super().__init__(driver, handle, name, dropped, successor)
        self.framework = framework
        self.theirs: Any = None

    def __enter__(self) -> Self:
        around = self.framework.current(self.driver, self.dropped)
        raw, inside = self.framework.inside(self)
        # A capture's stream runs nothing, so neither side waits for the other. A wait
        # would become a part of the graph.
        aside = self.fork is not None and self.fork.origin is self
        super().__enter__()
        try:
            if around is not self and not aside:
                self.wait(around)
        except DriverError:
            super().__exit__()
            raise
        inside.__enter__()
        _entered.within.append((self, inside, aside))
        self.framework.made[raw] = self
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        inside, aside = _entered.leave(self)
        inside.__exit__(*error)
        around = self.framework.current(self.driver, self.dropped)
        if around is not self and not aside:
            try:
                around.wait(self)
            except DriverError:
                # No event could order it, so wait on the host.
                self.synchronize()
                raise
