"""What frameworks that launch by themselves have in common: their streams are ours.

Nobody sees which array such a framework's stream uses. Therefore what is inside
``with stream:`` runs after all that was given before to the stream around it, and what
comes behind runs after it. The framework's own streams are ordered by hand, as they
are without this library.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Self
from weakref import WeakValueDictionary

from sapwood.driver.api import Driver, StreamHandle
from sapwood.driver.streams import Queue, Stream
from sapwood.errors import DriverError, InternalError
from sapwood.memory.framework import Manner

__all__ = ["GuestFramework", "GuestStream"]


class GuestFramework(ABC):
    """A framework's streams on one GPU, known by their raw numbers.

    ``made`` are those of this library that were current there, as long as they live;
    ``adopted`` the framework's own.
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
        heir: Stream | None = None,
    ) -> GuestStream:
        """Return a stream over a handle."""
        return GuestStream(self, driver, handle, name, dropped, heir)

    def known(self, raw: int) -> Stream | None:
        """Return the stream of a number, if it was used before."""
        return self.adopted.get(raw) or self.made.get(raw)

    def current(self, driver: Driver, dropped: Queue) -> Stream:
        """Return this thread's current stream, whoever made it."""
        raw = self.raw()
        found = self.adopted.get(raw) or self.made.get(raw)
        return found or self.adopt_current(raw, driver, dropped)

    def adopt(self, raw: int, name: str, driver: Driver, dropped: Queue) -> GuestStream:
        """Return a stream of the framework's own, known from now on."""
        # Of two over one handle, the first to go would take it along.
        with self._adopting:
            found = self.adopted.get(raw)
            if found is None:
                found = self.stream(driver, driver.adopt_stream(raw), name, dropped)
                self.adopted[raw] = found
            return found

    def lasting(self, driver: Driver, dropped: Queue) -> Stream | None:
        """Return None, for frameworks that forget streams that go."""
        del driver, dropped
        return None

    @abstractmethod
    def prime(self) -> None:
        """Make what this thread needs once, and cannot make in a capture."""

    def chance(self) -> Callable[[], object]:
        """Return what does nothing, for frameworks that draw from arrays."""
        return int

    def manner(self) -> Manner:
        """Return what makes contexts that change nothing, for who has no modes."""
        return Manner()

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
        heir: Stream | None = None,
    ) -> None:
        super().__init__(driver, handle, name, dropped, heir)
        self.framework = framework
        self.theirs: Any = None

    def __enter__(self) -> Self:
        around = self.framework.current(self.driver, self.dropped)
        raw, inside = self.framework.inside(self)
        # What is captured does not run, and is no work to wait for.
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
                # What comes next is after this all the same.
                self.synchronize()
                raise
