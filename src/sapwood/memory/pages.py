"""The physical pages of one device: extents, who lives on them, who uses them.

Pages that recordings are mapped on have numbers; sets of them are integers. A page
is *live* while a lease holds it. Work that streams may still do on a page is
remembered, so that whoever clobbers or unmaps it can wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final, TypeVar

from sapwood._fast.state import PageState
from sapwood.driver.api import Access, Driver, ExtentHandle
from sapwood.driver.release import Release
from sapwood.driver.results import Result
from sapwood.driver.streams import Stream
from sapwood.errors import DriverError, InternalError, OutOfMemory
from sapwood.units import Addr, Mask, Size, size_text

if TYPE_CHECKING:
    from sapwood.memory.range import Range

T = TypeVar("T")

Holders = tuple[tuple[str, int], ...]
"""Names, and how many bytes each holds."""

EAGER: Final = "eager arrays"
LIVE: Final = "live outputs"
RECORDED: Final = "outputs and temporaries of"
"""So names begin of what a recording holds; the recording's own follows."""
UNFINISHED: Final = "a recording in the making"

_HELPS: Final = {
    EAGER: "drop arrays that nobody needs",
    LIVE: "drop outputs that are kept",
    RECORDED: "lower max_recordings or max_variants",
}


def _remedy(asked: int, holders: Holders, limit: int | None) -> str:
    if limit is not None and asked > limit:
        return f"Ask for less at once, or raise memory_limit, {size_text(limit)} now"
    helps = [
        what
        for name, what in _HELPS.items()
        if any(who.startswith(name) for who, _ in holders)
    ]
    helps.append("ask for less at once" if limit is None else "raise memory_limit")
    *before, last = helps
    said = f"{', '.join(before)}, or {last}" if before else last
    return said[0].upper() + said[1:]


class Extent:
    """Adjacent numbered pages, created and mapped as one.

    ``ranges`` counts the ranges that map it; ``scratch`` says whether any recording
    may clobber it. One that is ``asleep`` keeps its numbers and its places in ranges,
    but no addresses are mapped, and it has no ``handle`` until it is to wake.
    """

    __slots__ = ("asleep", "first", "handle", "mask", "pages", "ranges", "scratch")

    def __init__(
        self, handle: ExtentHandle, first: int, pages: int, *, scratch: bool
    ) -> None:
        self.handle: ExtentHandle | None = handle
        self.first, self.pages = first, pages
        self.scratch, self.asleep = scratch, False
        self.mask = Mask(((1 << pages) - 1) << first)
        self.ranges = 0

    def awake_handle(self) -> ExtentHandle:
        """Return the handle of one that has its memory."""
        if self.handle is None:
            raise InternalError(f"{self.pages} pages from {self.first} on sleep")
        return self.handle


def twice(wait: Callable[[], T]) -> T:
    """Make a call that waits for work, and again where it has reported an error.

    The error may be that of earlier work, and is over then.
    """
    try:
        return wait()
    except DriverError:
        wait()
        raise


def finish(stream: Stream) -> None:
    """Wait for all work of a stream, before memory that it uses goes away."""
    # To unmap memory under work that still runs is worse than to wait twice.
    twice(stream.synchronize)


def page_numbers(mask: Mask) -> Sequence[int]:
    """Return the page numbers in a mask, in their order."""
    if mask & (mask - 1) == 0:
        return (mask.bit_length() - 1,) if mask else ()
    numbers: list[int] = []
    left = int(mask)
    while left:
        low = left & -left
        numbers.append(low.bit_length() - 1)
        left ^= low
    return numbers


class Pages(PageState):
    """The page pool of one device.

    ``limit`` bounds the bytes of all extents, the ``heap`` pages included. ``live``
    is the mask of pages that a lease holds; ``lingering`` are the closed ranges that
    wait for the end of one, ``asleep`` the ranges of which some pages sleep;
    ``revoked`` says whether any lease was ever ended while arrays had its bytes,
    ``ends`` that the device is closed; ``on_empty`` is called when a closed range is
    gone. ``spare`` and then ``reclaim`` are asked for memory before an `OutOfMemory`
    is raised, and say whether they found any: what nobody will miss, and what somebody
    may. ``evict`` is asked for the addresses of a range that somebody may miss;
    ``holders`` says who has how many bytes.
    """

    __slots__ = ("__dict__", "__weakref__")

    live: Mask
    uses: dict[Stream, Mask]

    def __init__(self, driver: Driver, limit: Size | None) -> None:
        self.driver, self.limit = driver, limit
        self.page = driver.abilities.page
        self.live = Mask(0)
        self.revoked = self.ends = False
        self.writes = 0
        self.extents: dict[Extent, None] = {}
        self.lingering: dict[Range, None] = {}
        self.on_empty: Callable[[], object] = int
        self.heap = 0
        self.reclaim: Callable[[], bool] = bool
        self.spare: Callable[[], bool] = bool
        self.evict: Callable[[], bool] = bool
        self.holders: Callable[[], Holders] = tuple
        self._numbers = Mask(0)
        self.asleep: set[Range] = set()
        self._holds: dict[int, int] = {}
        self.uses = {}

    # Addresses.

    def reserve(self, size: Size) -> Addr:
        """Reserve addresses; while none are left, recordings are evicted.

        Raises `DriverError` where there are none to evict.
        """
        while True:
            try:
                return self.driver.reserve(size)
            except DriverError as error:
                if error.name != Result.OUT_OF_MEMORY.name or not self.evict():
                    raise

    # Extents.

    def create(self, pages: int, *, scratch: bool) -> Extent:
        """Create an extent of adjacent, numbered pages; raises `OutOfMemory`."""
        return self._numbered(self.create_raw(pages), pages, scratch=scratch)

    def create_if_free(self, pages: int, *, scratch: bool) -> Extent | None:
        """Create an extent where there is memory for it now; nothing is reclaimed."""
        try:
            handle = self._create(Size(pages * self.page))
        except OutOfMemory:
            return None
        return self._numbered(handle, pages, scratch=scratch)

    def _numbered(self, handle: ExtentHandle, pages: int, *, scratch: bool) -> Extent:
        first = self._free_numbers(pages)
        extent = Extent(handle, first, pages, scratch=scratch)
        # In this order no call comes between the two. An interrupt there would leave an
        # extent whose numbers the next one gets as well.
        self._numbers = Mask(self._numbers | extent.mask)
        self.extents[extent] = None
        return extent

    def create_raw(self, pages: int) -> ExtentHandle:
        """Create physical memory without page numbers, within the limit.

        While there is none, what can be reclaimed is. Raises `OutOfMemory`, which
        says who holds how much.
        """
        size = Size(pages * self.page)
        while True:
            try:
                return self._create(size)
            # No other name for it: its traceback holds the callers' frames, and a name
            # that outlives the handler would keep their arrays alive.
            except OutOfMemory as error:
                if not (self.spare() or self.reclaim()):
                    raise self.shortage(error.call, size, error.free) from error

    def shortage(self, call: str, asked: int, free: int) -> OutOfMemory:
        """Return the error of who is refused so many bytes, and who holds the rest."""
        holders = self.holders()
        remedy = _remedy(asked, holders, self.limit)
        return OutOfMemory(call, asked=asked, free=free, holders=holders, remedy=remedy)

    def unheld(self, mask: Mask) -> int:
        """Return how many pages are awake, and neither live nor in ``mask``."""
        return (self.awake() & ~(self.live | mask)).bit_count()

    def awake(self) -> Mask:
        """Return the pages that are there and do not sleep."""
        masks = (e.mask for e in self.extents if e.handle is not None)
        return reduce(or_, masks, Mask(0))

    def free(self) -> Size:
        """Return how many bytes could be had: of the limit, or else of the device."""
        if self.limit is None:
            return self.driver.memory_info().free
        return Size(max(self.limit - (self.mapped() + self.heap) * self.page, 0))

    def _create(self, size: Size) -> ExtentHandle:
        if self.limit is not None and size > (free := self.free()):
            raise OutOfMemory("create", asked=size, free=free)
        return self.driver.create(size)

    def leave(self, extent: Extent) -> None:
        """Count one use of an extent less; give it back after the last."""
        extent.ranges -= 1
        if not extent.ranges:
            self.release(extent)

    def release(self, extent: Extent) -> None:
        """Give an extent back that no range maps and no lease holds."""
        if extent.ranges or extent.mask & self.live:
            raise InternalError("an extent is released when nobody uses it")
        self.extents.pop(extent, None)
        self._numbers = Mask(self._numbers & ~extent.mask)
        for stream in list(self.uses):
            self._forget(stream, extent.mask)
        if extent.handle is not None:
            self.driver.release(extent.handle)

    def _free_numbers(self, count: int) -> int:
        first, want = 0, (1 << count) - 1
        while taken := (self._numbers >> first) & want:
            first += taken.bit_length()
        return first

    def mapped(self, *, scratch: bool | None = None) -> int:
        """Return the number of pages of recordings: scratch, output, or both."""
        there = (e for e in self.extents if e.handle is not None)
        return sum(e.pages for e in there if scratch in (None, e.scratch))

    def shares(self) -> tuple[int, int, int]:
        """Return how many pages recordings have, live outputs, and eager arrays."""
        live = self.live.bit_count()
        return self.mapped() - live, live, self.heap

    # Sleep.

    def sleep(self, ranges: Iterable[Range]) -> Size:
        """Give back the physical memory of ranges that no lease holds, until `wake`.

        Addresses, numbers and graphs stay. What others map as well stays, too: somebody
        captures there, or looks at what he has there. Returns how many bytes.
        """
        resting = [r for r in ranges if not (r.closed or r.outsiders())]
        going = {
            extent: there
            for extent, there in self._places(resting).items()
            if not (extent.asleep or extent.mask & self.live)
            and len({r for r, _ in there}) == extent.ranges
        }
        with Release() as release:
            release(self.settle, reduce(or_, (e.mask for e in going), Mask(0)))
            self.asleep.update(r for there in going.values() for r, _ in there)
            for extent, there in going.items():
                release(self._lay_down, extent, [at for _, at in there])
        return Size(sum(extent.pages for extent in going) * self.page)

    def wake(self) -> None:
        """Have what sleeps again, at the same addresses; what was there is lost.

        Nothing that sleeps is evicted for it. Raises `OutOfMemory` or `DriverError`,
        and then it sleeps on.
        """
        if not self.asleep:
            return
        try:
            for extent in [e for e in self.extents if e.asleep]:
                handle = self.create_raw(extent.pages)
                if extent in self.extents:  # else its range was closed meanwhile
                    extent.handle = handle
                else:
                    self.driver.release(handle)
            for extent, there in self._sleepers().items():
                for at in there:
                    self.driver.map(at, extent.awake_handle())
                    size = Size(extent.pages * self.page)
                    self.driver.set_access(at, size, Access.READ_WRITE)
                extent.asleep = False
        except BaseException:
            for extent, there in self._sleepers().items():
                with suppress(DriverError):
                    self._lay_down(extent, there)
            raise
        self.asleep.clear()

    def _places(
        self, ranges: Iterable[Range]
    ) -> dict[Extent, list[tuple[Range, Addr]]]:
        """Return where ranges map each of their extents."""
        found = dict[Extent, list[tuple["Range", Addr]]]()
        for range_ in ranges:
            for at, extent in range_.mappings():
                found.setdefault(extent, []).append((range_, at))
        return found

    def _sleepers(self) -> dict[Extent, list[Addr]]:
        places = self._places(self.asleep).items()
        return {e: [at for _, at in there] for e, there in places if e.asleep}

    def _lay_down(self, extent: Extent, there: Sequence[Addr]) -> None:
        """Unmap an extent wherever it is mapped, and give it back, come what may."""
        size = Size(extent.pages * self.page)
        with Release() as release:
            try:
                for at in there:
                    release(self.driver.unmap, at, size)
            except BaseException:
                for at in there:
                    with suppress(DriverError):
                        self.driver.unmap(at, size)
                raise
            finally:
                extent.asleep, handle, extent.handle = True, extent.handle, None
                if handle is not None:
                    release(self.driver.release, handle)

    # Liveness.

    def hold(self, mask: Mask) -> None:
        """Make pages live; they may be held several times, each with a `drop`."""
        for number in page_numbers(mask):
            self._holds[number] = self._holds.get(number, 0) + 1
        self.live = Mask(self.live | mask)

    def drop(self, mask: Mask) -> None:
        """Undo one `hold`; closed ranges give back the pages that are free by then."""
        before = self.live
        for number in page_numbers(mask):
            holds = self._holds.get(number, 0)
            if holds == 0:
                raise InternalError(f"a lease ends once: page {number} is not live")
            if holds > 1:
                self._holds[number] = holds - 1
            else:
                del self._holds[number]
                self.live = Mask(self.live & ~(1 << number))
        if self.lingering and self.live != before:
            self.close_lingering()

    def close_lingering(self) -> None:
        """Try again to close ranges that were closed while outputs were held."""
        with Release() as release:
            for range_ in list(self.lingering):
                release(range_.close)

    # Use by streams.

    def claim(self, stream: Stream, mask: Mask) -> None:
        """Order further work of ``stream`` after all work on these pages.

        The pages count as used by it from here on, and by it alone: to wait for it
        is to wait for the others. If they sleep, they wake: no work is on such pages,
        so that whatever launches on them asks here.
        """
        if len(self.uses) == 1 and self.uses.get(stream, 0) & mask == mask:
            return  # nobody else has work anywhere
        self.wake()
        others = [s for s, m in self.uses.items() if m & mask and s is not stream]
        for other in others:
            stream.wait(other)
        for other in others:
            self._forget(other, mask)
        self.used((stream,), mask)

    def used(self, streams: tuple[Stream, ...], mask: Mask) -> None:
        """Remember that these streams may have work on the pages."""
        if mask:
            for stream in streams:
                self.uses[stream] = Mask(self.uses.get(stream, 0) | mask)

    def settle(self, mask: Mask) -> None:
        """Wait until no stream works on these pages."""
        with Release() as release:
            for stream in [s for s, m in self.uses.items() if m & mask]:
                del self.uses[stream]
                release(finish, stream)

    def _forget(self, stream: Stream, mask: Mask) -> None:
        left = self.uses[stream] & ~mask
        if left:
            self.uses[stream] = Mask(left)
        else:
            del self.uses[stream]
