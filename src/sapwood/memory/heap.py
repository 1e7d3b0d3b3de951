"""The memory of eager arrays: blocks over one growing segment.

A freed block remembers the streams whose work may still use it; whoever takes it on
another stream waits for them first, in stream order and not on the host.
"""

from __future__ import annotations

from sapwood.driver.api import Access, Driver
from sapwood.driver.release import Release
from sapwood.driver.streams import Stream
from sapwood.errors import DriverError
from sapwood.memory.blocks import Blocks
from sapwood.memory.pages import Pages, finish
from sapwood.memory.returns import Returns
from sapwood.memory.storage import Storage
from sapwood.units import Addr, Size, align_up

__all__ = ["Heap"]


class _Block:
    """The token of a storage on the heap."""

    __slots__ = ("address", "heap")

    def __init__(self, heap: Heap, address: Addr) -> None:
        self.heap, self.address = heap, address

    def ended(self, streams: tuple[Stream, ...]) -> None:
        self.heap.give(self.address, streams)


class Heap:
    """A general allocator, simple and exact; called under the device's lock."""

    def __init__(self, driver: Driver, pages: Pages, returns: Returns) -> None:
        self.driver, self.pages, self.returns = driver, pages, returns
        self.base: Addr | None = None
        self.blocks = Blocks(Addr(0))
        self.closed = False
        self._growing = False
        self._reserved = Size(0)
        self._extents: list[Size] = []

    def allocate(self, size: Size, stream: Stream) -> Storage:
        """Return fresh bytes for use on ``stream``; raises `OutOfMemory`."""
        while (taken := self.blocks.take(size)) is None:
            self._grow(self.blocks.missing(size))
        address, tags = taken
        try:
            for other in tags:
                if isinstance(other, Stream):
                    stream.wait(other)
        except DriverError:
            self.blocks.give(address, tags)
            raise
        storage = Storage(address, size, _Block(self, address), self.returns)
        if tags:
            # Whoever is next, on whatever stream, is after those waited for here.
            storage.writer = stream
        return storage

    def give(self, address: Addr, streams: tuple[Stream, ...]) -> None:
        """Take a block back that ``streams`` may still be using."""
        self.blocks.give(address, frozenset(streams))
        if self.closed:
            self.trim()

    def used(self) -> Size:
        """Return the bytes in blocks that somebody holds."""
        return Size(sum(self.blocks.taken.values()))

    def trim(self) -> Size:
        """Unmap the pages at the end that are free; return how many bytes.

        None while the heap grows, as what is free there is a part of what is wanted.
        """
        if self._growing:
            return Size(0)
        before = self.blocks.end
        with Release() as release:
            while self._extents:
                free, tags = self.blocks.tail()
                size = self._extents[-1]
                if free < size:
                    break
                for stream in tags:
                    if isinstance(stream, Stream):
                        release(finish, stream)
                self._extents.pop()
                self.blocks.shrink(size)
                self.pages.heap -= size // self.pages.page
                release(self.driver.unmap, self.blocks.end, size)
            if self.closed and not self._extents and self.base is not None:
                base, self.base = self.base, None
                release(self.driver.unreserve, base, self._reserved)
        return Size(before - self.blocks.end)

    def close(self) -> None:
        """Unmap what is free now, and the rest as soon as nobody holds it."""
        self.closed = True
        self.trim()

    def _grow(self, size: Size) -> None:
        if self.base is None:
            # Everything from the base to the end is mapped: no more is ever needed.
            total = self.driver.memory_info().total
            reserved = Size(align_up(total, self.pages.page))
            self.base, self._reserved = self.driver.reserve(reserved), reserved
            self.blocks = Blocks(self.base)
        size = Size(align_up(size, self.pages.page))
        self._growing = True
        try:
            extent = self.pages.create_raw(size // self.pages.page)
        finally:
            self._growing = False
        at = self.blocks.end
        try:
            self.driver.map(at, extent)
        except DriverError:
            self.driver.release(extent)
            raise
        try:
            # The mapping keeps the memory.
            self.driver.release(extent)
            self.driver.set_access(at, size, Access.READ_WRITE)
        except DriverError:
            self.driver.unmap(at, size)
            raise
        self._extents.append(size)
        self.blocks.grow(size)
        self.pages.heap += size // self.pages.page
