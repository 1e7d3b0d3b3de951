"""The memory of eager arrays: an allocator whose blocks all streams exchange.

A freed block may be taken by anybody at once: whoever takes it waits, in stream order
and not on the host, for exactly the streams whose work may still use those bytes. To
the allocator all of them are one stream.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from typing import Final, Protocol

from sapwood.driver.api import Driver, EventHandle, ExtentHandle, StreamHandle
from sapwood.driver.facade import Layer
from sapwood.driver.release import Release
from sapwood.driver.results import Result
from sapwood.driver.streams import Stream
from sapwood.errors import DriverError, OutOfMemory
from sapwood.memory.pages import Pages, finish, twice
from sapwood.memory.returns import Returns
from sapwood.memory.storage import Owned, Storage
from sapwood.units import Addr, Size, align_up

_Streams = frozenset[Stream]

_start: Final = itemgetter(0)


class Uses:
    """Disjoint intervals of addresses, with the streams that may be using them."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, _Streams]] = []

    def add(self, start: int, end: int, streams: _Streams) -> None:
        """Remember the streams of an interval nothing is known of."""
        if streams:
            insort(self._spans, (start, end, streams), key=_start)

    def take(self, start: int, end: int) -> dict[Stream, None]:
        """Forget an interval; return the streams that may be using some of it."""
        spans = self._spans
        first = bisect_right(spans, start, key=_start)
        if first and spans[first - 1][1] > start:
            first -= 1
        last = bisect_left(spans, end, first, key=_start)
        touched = spans[first:last]
        if not touched:
            return {}
        found = dict.fromkeys(stream for *_, streams in touched for stream in streams)
        (lo, _, before), (_, hi, behind) = touched[0], touched[-1]
        outside = (lo, start, before), (end, hi, behind)
        # One slice assignment: an interrupt sees the spans from before or behind it.
        spans[first:last] = [span for span in outside if span[0] < span[1]]
        return found

    def streams(self) -> dict[Stream, None]:
        """Return all streams that may be using anything."""
        return dict.fromkeys(
            stream for *_, streams in self._spans for stream in streams
        )

    def clear(self) -> None:
        """Forget everything: all of it is over."""
        self._spans.clear()


_EVERYBODY: Final = StreamHandle(0)
"""The one stream that the allocator sees."""


class HeapAllocator(Protocol):
    """An allocator of blocks whose sizes are rounded up to a multiple of ``grain``.

    ``base`` is the lowest address reserved for it, None where nothing is; `blocks` are
    each one's address, size and state.
    """

    @property
    def grain(self) -> Size: ...
    @property
    def base(self) -> Addr | None: ...
    def malloc(self, size: int, stream: StreamHandle) -> Addr: ...
    def free(self, address: Addr) -> None: ...
    def allocated_bytes(self) -> Size: ...
    def blocks(self) -> Iterable[tuple[Addr, Size, str]]: ...
    def trim(self) -> Size: ...
    def close(self) -> None: ...


Opener = Callable[[Driver], HeapAllocator]
"""Opens an allocator on a driver."""


class Everybody(Layer):
    """The heap's driver: all streams are one, and memory is part of the device's pages.

    So the work of all streams on free bytes is that of one stream, and what is created
    counts towards the pages' limit. ``growing`` says that this is happening now.
    """

    def __init__(self, driver: Driver, pages: Pages, uses: Uses) -> None:
        super().__init__(driver)
        self.pages, self.uses = pages, uses
        self.growing = False
        self._counts: dict[ExtentHandle, int] = {}

    def create(self, size: Size) -> ExtentHandle:
        """Return new physical memory out of the device's pages, within its limit."""
        count = size // self.pages.page
        self.growing = True
        try:
            extent = self.pages.create_raw(count)
        finally:
            self.growing = False
        self.pages.heap += count
        self._counts[extent] = count
        return extent

    def release(self, extent: ExtentHandle) -> None:
        """Take physical memory back."""
        self.pages.heap -= self._counts.pop(extent)
        self.driver.release(extent)

    def query_stream(self, stream: StreamHandle) -> bool:
        """Return whether nobody works on free bytes."""
        del stream
        # At the end of a process a stream may be destroyed before storages that were
        # used on it. It cannot be queried any more, so it counts as busy.
        idle = all(not user.ended and user.query() for user in self.uses.streams())
        if idle:
            self.uses.clear()
        return idle

    def record_event(self, event: EventHandle, stream: StreamHandle) -> None:
        """Mark nothing: the device's lock is held, so that nobody else would profit."""

    def synchronize_stream(self, stream: StreamHandle) -> None:
        """Wait until nobody works on free bytes."""
        del stream
        with Release() as release:
            release.each(finish, self.uses.streams())
        self.uses.clear()


class Heap:
    """The allocator of eager arrays, and its budget; called under the device's lock."""

    def __init__(
        self, driver: Driver, pages: Pages, returns: Returns, opener: Opener
    ) -> None:
        self.pages, self.returns = pages, returns
        self.uses = Uses()
        self._driver = Everybody(driver, pages, self.uses)
        self.allocator = opener(self._driver)

    def allocate(self, size: Size, stream: Stream) -> Storage:
        """Return fresh bytes for use on ``stream``; raises `OutOfMemory`."""
        asked = max(size, 1)
        address = self._taken(asked)
        end = align_up(address + asked, self.allocator.grain)
        users = self.uses.take(address, end)
        try:
            for other in users:
                stream.wait(other)
        except BaseException:
            self.give(address, end, tuple(users))
            raise
        token = Owned(partial(self.give, address, end))
        storage = Storage(address, size, token, self.returns)
        if users:
            # A later user on any stream waits for this writer, and so for `users`.
            storage.writer = stream
        return storage

    def _taken(self, size: int) -> Addr:
        while True:
            try:
                return self.allocator.malloc(size, _EVERYBODY)
            except DriverError as error:
                if error.name != Result.OUT_OF_MEMORY.name:
                    raise
                # OutOfMemory: what can be reclaimed was. Any other error is a lack of
                # addresses, which only an eviction gives back.
                if isinstance(error, OutOfMemory) or not self.pages.evict():
                    free = self.pages.free()
                    raise self.pages.shortage(error.call, size, free) from None

    def give(self, address: Addr, end: int, streams: tuple[Stream, ...]) -> None:
        """Take a block back that ``streams`` may still be using."""
        self.uses.add(address, end, frozenset(streams))
        try:
            self.allocator.free(address)
        except DriverError:
            # The device is closed, and its last wait failed. Close the allocator all
            # the same, or its memory would never be released.
            self.allocator.close()
            raise

    def used(self) -> Size:
        """Return the bytes in blocks that somebody holds."""
        return self.allocator.allocated_bytes()

    def trim(self) -> Size:
        """Give back the pages that are free; return how many bytes.

        None while the heap grows, as what is free there is a part of what is wanted.
        """
        if self._driver.growing:
            return Size(0)
        return twice(self.allocator.trim)

    def close(self) -> None:
        """Unmap what is free now, and the rest as soon as nobody holds it."""
        twice(self.allocator.close)
