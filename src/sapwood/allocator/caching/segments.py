"""What is reserved and mapped: the only place that changes the device's memory.

Every call that makes something either makes all of it or leaves everything as it
was. Calls that give back do it all, and raise the first error at the end; they need
no lock, and are about what no book knows any more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final

from sapwood.allocator.caching.blocks import (
    UNMAPPED,
    Block,
    Blocks,
    Extent,
    Segment,
    size_of,
)
from sapwood.driver.api import Access, Driver
from sapwood.driver.release import Release
from sapwood.driver.results import Result
from sapwood.errors import DriverError, InternalError
from sapwood.units import Addr, Size, align_up, touching

_ADDRESSES = 8 << 40
"""Reservations beyond so many bytes of addresses are made small: there are 128 TiB,
and other libraries that reserve."""

_FEWER = 16

_address: Final = attrgetter("address")


class Segments:
    """The segments of one allocator, and the memory mapped in them.

    In bytes, ``held`` is the memory, ``addresses`` what is reserved for it, ``away``
    memory that has left the books but not the device, ``moved`` all that was ever
    mapped elsewhere. ``leaving`` are segments that somebody is taking memory from
    just now: how many do. ``arrivals`` and ``departures`` count how often memory came
    and went.
    """

    def __init__(self, driver: Driver, blocks: Blocks) -> None:
        self.driver, self.blocks = driver, blocks
        self.held = self.addresses = self.away = self.moved = self.departures = 0
        self.arrivals = 0
        self.leaving = Counter[Segment]()
        self._by_address: list[Segment] = []

    def lowest(self) -> Addr | None:
        """Return the lowest address that is reserved, if any is."""
        return self._by_address[0].address if self._by_address else None

    def containing(self, address: int) -> Segment | None:
        """Return the segment in which an address lies."""
        at = bisect_right(self._by_address, address, key=_address)
        segment = self._by_address[at - 1] if at else None
        return segment if segment and address < segment.guard.address else None

    # Addresses.

    def reserve(self, least: Size, wish: int) -> tuple[Addr, Size]:
        """Reserve ``wish`` bytes of addresses, or fewer: say which, and how many.

        Raises `DriverError` where not even ``least`` bytes are left.
        """
        page = self.driver.abilities.page
        if self.addresses + wish > _ADDRESSES:
            wish //= _FEWER
        while True:
            size = Size(max(align_up(wish, page), least))
            try:
                return self.driver.reserve(size), size
            except DriverError as error:
                if size == least or error.name != Result.OUT_OF_MEMORY.name:
                    raise
                wish = size // 2

    def enlist(self, segment: Segment) -> None:
        """Have a new segment, nothing of which is mapped yet."""
        block = Block(segment.address, segment.size, segment)
        block.state = UNMAPPED
        block.prev = block.next = segment.guard
        segment.guard.prev = segment.guard.next = block
        segment.holes[block] = None
        self.blocks[segment.address] = block
        insort(self._by_address, segment, key=_address)
        segment.bin.segments[segment] = None
        if segment.source is None:
            self.addresses += segment.size

    def unlist(self, segment: Segment) -> None:
        """Forget a segment, of which nothing is used or mapped any more."""
        block = segment.whole()
        if block is None or (segment.extents and segment.source is None):
            raise InternalError("a segment goes when nothing of it is used or mapped")
        del self.blocks[segment.address]
        self._by_address.remove(segment)
        del segment.bin.segments[segment]
        if segment.source is None:
            self.addresses -= segment.size
        else:
            self.held -= segment.size

    def surrender(self, segment: Segment) -> None:
        """Give the addresses of a segment back, or the segment to its source."""
        if segment.source is None:
            self.driver.unreserve(segment.address, segment.size)
        else:
            segment.source.free(segment.address, segment.size, segment.bin.stream)

    # Memory.

    def map(self, pieces: Sequence[Extent], moved: Sequence[Extent]) -> list[Extent]:
        """Create memory for pieces, and map it with what is ``moved``, with access.

        Raises having created and mapped nothing.
        """
        made: list[Extent] = []
        mapped: list[Extent] = []
        with Release() as undo:
            try:
                for piece in pieces:
                    made.append(replace(piece, handle=self.driver.create(piece.size)))  # noqa: PERF401  undone
                for extent in (*made, *moved):
                    self.driver.map(extent.address, extent.physical())
                    mapped.append(extent)
                for address, size in _intervals(mapped):
                    self.driver.set_access(address, size, Access.READ_WRITE)
            except BaseException:
                for address, size in _intervals(mapped):
                    undo(self.driver.unmap, address, size)
                undo(self.discard, made)
                raise
        return mapped

    def discard(self, made: Sequence[Extent]) -> None:
        """Give back the memory of extents that are mapped nowhere."""
        with Release() as release:
            for extent in made:
                if extent.handle is not None:
                    release(self.driver.release, extent.handle)

    def supply(self, segment: Segment, extents: Sequence[Extent]) -> None:
        """Remember newly mapped extents of a segment."""
        for extent in extents:
            insort(segment.extents, extent)
        self.held += size_of(extents)
        self.arrivals += 1

    def unmap(self, extents: Sequence[Extent]) -> None:
        """Unmap extents; they keep their memory."""
        with Release() as release:
            for address, size in _intervals(extents):
                release(self.driver.unmap, address, size)

    def take_out(self, segment: Segment, extents: Sequence[Extent]) -> None:
        """Let extents be in the segment no more, though they are mapped still."""
        for extent in extents:
            del segment.extents[bisect_left(segment.extents, extent)]
        self.held -= size_of(extents)
        self.away += size_of(extents)


def _intervals(extents: Sequence[Extent]) -> list[tuple[Addr, Size]]:
    """Return the intervals that extents cover, adjoining ones as one."""
    joined = touching((each.address, each.size) for each in sorted(extents))
    return [(Addr(address), Size(size)) for address, size in joined]
