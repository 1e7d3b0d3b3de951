"""The addresses of one recording, and the physical pages behind them.

    base             base + half
    |-- temporaries ---->  |-- allocations expected to stay ---->  |

What finds no room there, and what is allocated behind the capture, gets a piece of
addresses of its own. While captured, all is backed by scratch pages, whoever uses them:
nothing runs. Then `place` maps pages that hold an output onto output pages. What
somebody else has captured with an allocator of his own is backed by `fold`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from typing import Final
from weakref import ref

from sapwood.driver.api import Access
from sapwood.driver.release import Release
from sapwood.driver.streams import Queue, Stream
from sapwood.memory.blocks import Blocks, Tags
from sapwood.memory.fold import (
    Life,
    Stretch,
    best_fold,
    grain,
    power_above,
    power_below,
    runs,
    stretch,
    stretches,
)
from sapwood.memory.pages import Extent, Pages
from sapwood.memory.storage import Owned, Storage
from sapwood.units import Addr, Mask, Size, align_up, touching

LEAST: Final = 16
"""How many pages a piece has at the least: addresses are many, reservations cost."""


WIDE: Final = Size(256 << 20)
"""How large an extent to lend is at the most, unless sixteen are too few. Mapping one
costs an H200 60 us, large or small; making and releasing this much costs it 90."""


class Loan:
    """The addresses of a range from ``at`` on, ``room`` pages; half of them are lent.

    What is mapped is whole extents, which may end as far behind as they are large.

    ``beside`` are the extents that lie elsewhere in the range.
    """

    def __init__(
        self, pages: Pages, at: Addr, room: int, beside: Mapping[int, Extent]
    ) -> None:
        self.pages, self.at, self.most = pages, at, max(1, room // 2)
        self._beside = beside
        self._mapped: tuple[Extent, Size] | None = None
        self._wide: Extent | None = None

    def spare(self) -> list[Extent]:
        """Return the scratch extents that may be mapped anywhere in the range."""
        # What was made to be lent goes when that ends: nothing else may lie on it.
        taken = {*self._beside.values(), self._wide}
        known = (e for e in self.pages.extents if e.scratch and not e.asleep)
        return [e for e in known if e not in taken]

    def lend(self, size: Size) -> tuple[Addr, Size]:
        """Back addresses for ``size`` bytes; return where and how many."""
        page = self.pages.page
        count = min(max(1, align_up(size, page) // page), self.most)
        return self.at, self._map(count, self._aside(count))

    def less(self, create: Callable[..., Extent | None]) -> bool:
        """Lend the same addresses with less, if more was made for it; say if so.

        What there is stands behind them, or what ``create`` makes, or nothing.
        """
        if self._mapped is None or self._wide is None:
            return False
        _, size = self._mapped
        count = size // self.pages.page
        self.take_back()
        least = grain(count)
        spare = (e for e in self.spare() if least <= e.pages <= self.most)
        extent = next(spare, None) or create(least, scratch=True)
        if extent is not None:
            self._map(count, extent)
        return True

    def take_back(self) -> None:
        """Unmap what is lent, if anything is; what was made for it goes."""
        mapped, self._mapped = self._mapped, None
        if self._wide is not None:
            self._wide, self.pages.spare = None, bool
        if mapped is None:
            return
        extent, size = mapped
        with Release() as release:
            if size:
                release(self.pages.driver.unmap, self.at, size)
            release(self.pages.leave, extent)

    def _map(self, count: int, extent: Extent) -> Size:
        driver, step = self.pages.driver, extent.pages * self.pages.page
        whole = Size(-(-count // extent.pages) * step)
        extent.ranges += 1
        self._mapped = extent, Size(0)
        for offset in range(0, whole, step):
            driver.map(Addr(self.at + offset), extent.awake_handle())
            self._mapped = extent, Size(offset + step)
        driver.set_access(self.at, whole, Access.READ_WRITE)
        return whole

    def _aside(self, count: int) -> Extent:
        """Return an extent to lend ``count`` pages with: a large one, if it is to have.

        Nobody is to lose anything for one that is larger than need be.
        """
        least, most = grain(count), WIDE // self.pages.page
        above, below = (
            max(least, min(power, most, self.most))
            for power in (power_above(count), power_below(count))
        )
        fitting = (e for e in self.spare() if e.pages <= self.most)
        largest = max(fitting, key=lambda e: e.pages, default=None)
        if largest is not None and 2 * largest.pages >= above:
            return largest
        for wanted in dict.fromkeys((above, below)):
            self._wide = self.pages.create_if_free(wanted, scratch=True)
            if self._wide is not None:
                self.pages.spare = partial(self.less, self.pages.create)
                return self._wide
        if largest is not None and largest.pages >= least:
            return largest
        return self.pages.create(least, scratch=True)


HALF: Final = Size(1 << 36)
"""The most that either half of a range is made for."""

REACH: Final = Size(2 * HALF)
"""No half ends further from the start of its range."""

LENT: Final = Size(HALF // 2)
"""The most that somebody else may allocate from."""


class Range:
    """Reserved addresses with pages mapped into them.

    Made by `reserve`; to be closed. Pages are numbered from ``base``; those of pieces
    that lie elsewhere have numbers far away, which may be negative. `close` leaves
    pages mapped that are live, and the last lease takes them along. ``outsiders`` says
    whether somebody else still knows allocations by addresses of this range, which then
    stay mapped, on whatever pages. ``folded`` says whether an extent may be mapped
    several times.
    """

    def __init__(self, pages: Pages, base: Addr, half: Size, size: Size) -> None:
        self.pages, self.base, self.half = pages, base, half
        self.closed = self.folded = False
        self.mask = Mask(0)
        self._extents: dict[int, Extent] = {}
        self.outsiders: Callable[[], bool] = bool
        self._lines: dict[Addr, str | None] = {}
        self._made: list[ref[Storage]] = []
        # Both halves as one, then each further piece.
        self._reserved = {base: size}
        middle, end = Addr(base + half), Addr(base + size)
        self._temporaries = [Blocks(base, middle)]
        self._staying = [Blocks(middle, end)]
        self._late: list[Blocks] = []
        self._loan = Loan(pages, middle, (size - half) // pages.page, self._extents)

    @classmethod
    def reserve(
        cls, pages: Pages, temporaries: Size = HALF, stays: Size = HALF
    ) -> Range:
        """Reserve addresses for so many bytes of either kind; nothing is mapped yet.

        While none are left, recordings are evicted. What sleeps is woken. Raises
        `DriverError`, or `OutOfMemory`.
        """
        pages.wake()
        half, rest = (
            Size(max(pages.page, align_up(min(size, HALF), pages.page)))
            for size in (temporaries, stays)
        )
        size = Size(half + rest)
        return cls(pages, pages.reserve(size), half, size)

    # While capturing.

    def allocate(
        self,
        size: Size,
        stream: Stream,
        queue: Queue,
        *,
        line: str | None,
        stays: bool = False,
        late: bool = False,
    ) -> Storage:
        """Return addresses for an allocation of the captured function.

        ``stays`` is a guess: the allocation will outlive the function. ``late``: it is
        made after capture. If it raises, the range must be closed.
        """
        # What is allocated late may share no bytes with what was freed in the capture.
        pieces = self._staying if stays else self._temporaries
        pieces = self._late if late else pieces
        blocks, address, tags = self._take(pieces, size, stays=stays)
        for other in tags:
            if isinstance(other, Stream) and other is not stream:
                stream.wait(other)
        self._lines[address] = line
        # Inside a capture the tags of a block are the streams that were forked.
        token = Owned(partial(blocks.give, address))
        storage = Storage(address, size, token, queue, captured=True)
        if tags:
            storage.writer = stream
        self._made.append(ref(storage))
        return storage

    def _take(
        self, pieces: list[Blocks], size: Size, *, stays: bool
    ) -> tuple[Blocks, Addr, Tags]:
        for blocks in pieces:
            taken = blocks.take(size)
            if taken is not None:
                return blocks, *taken
        last = self._last(pieces, size)
        last.grow(self._back(last, last.missing(size), stays=stays))
        return self._take([last], size, stays=stays)

    def _last(self, pieces: list[Blocks], size: Size) -> Blocks:
        """Return the last of some pieces, which may grow until ``size`` bytes fit.

        It is a new one where the others are too small. Raises `DriverError`.
        """
        page = self.pages.page
        if pieces:
            last = pieces[-1]
            if last.end + align_up(last.missing(size), page) <= last.stop:
                return last
        room = Size(align_up(max(size, LEAST * page), page))
        start = self.pages.reserve(room)
        self._reserved[start] = room
        pieces.append(Blocks(start, Addr(start + room)))
        return pieces[-1]

    def holds(self, address: Addr) -> bool:
        """Return whether an address is one of those that are reserved here."""
        return any(lo <= address < hi for lo, hi in self.spans())

    def spans(self) -> list[tuple[Addr, Addr]]:
        """Return what is reserved: both halves as one, then each further piece."""
        return [(at, Addr(at + size)) for at, size in self._reserved.items()]

    @property
    def whole(self) -> bool:
        """Whether all that was captured lies in the two halves."""
        return len(self._temporaries) == len(self._staying) == 1

    def taken(self) -> list[tuple[Addr, Size, str | None]]:
        """Return the blocks in use, and the lines that asked for them.

        When capture has ended, these are the survivors.
        """
        return [
            (address, size, self._lines[address])
            for piece in (*self._temporaries, *self._staying, *self._late)
            for address, size in piece.taken.items()
        ]

    def _back(self, piece: Blocks, size: Size, *, stays: bool) -> Size:
        page, at = self.pages.page, piece.end
        count = align_up(size, page) // page
        if not stays:
            more = stretch(count, (e.pages for e in self._loan.spare()))
            count = more if at + more * page <= piece.stop else count
        self._open(self._map([((at - self.base) // page, count)]))
        return Size(count * page)

    # While a framework captures with an allocator of its own.

    def lend(self, size: Size) -> tuple[Addr, Size]:
        """Back addresses that somebody else allocates from; return where and how many.

        What stands behind them is scratch; `fold` ends that.
        """
        return self._loan.lend(size)

    def idle(self) -> Size:
        """Return how much scratch there is that nothing of this range lies on."""
        return Size(sum(e.pages for e in self._loan.spare()) * self.pages.page)

    def fold(
        self,
        lives: Sequence[Life],
        outputs: AbstractSet[int],
        candidates: Collection[Extent],
    ) -> None:
        """Back of the lent addresses those that ``lives`` touch.

        Temporaries that are among them are backed anew. Pages that are never alive at
        the same time may be one. ``outputs`` and ``candidates`` as in `place`. If it
        raises, the range must be closed.
        """
        self._loan.take_back()
        lives = [*lives, *self._lasting(lives)]
        found = stretches(lives, outputs, self.base, self.pages.page)
        self.folded = bool(found)
        with self._moving({i for each in found for i in each.indices()}):
            placed = self._map_folded(found, self._loan.spare(), self._idle(candidates))
        self._open(placed)

    def _lasting(self, lives: Sequence[Life]) -> list[Life]:
        """Return temporaries of which nothing is known, where some are told of."""
        told = {life.lo for life in lives}
        taken = {at: n for each in self._temporaries for at, n in each.taken.items()}
        if told.isdisjoint(taken):
            return []
        left, first = taken.keys() - told, min(life.born for life in lives)
        return [Life(at, Addr(at + taken[at]), first, None) for at in left]

    # After capture.

    def back(self, indices: AbstractSet[int]) -> None:
        """Back pages of a range in which nothing was captured, for what was elsewhere.

        If it raises, the range must be closed.
        """
        self._open(self._map(runs(indices)))

    def page_indices(self, spans: Iterable[tuple[Addr, Addr]]) -> set[int]:
        """Return the indices of the pages of this range that the spans touch."""
        found: set[int] = set()
        for lo, hi in spans:
            found.update(range(*self._indices(lo, hi)))
        return found

    def _indices(self, lo: Addr, hi: Addr) -> tuple[int, int]:
        """Return the first page that ``[lo, hi)`` touches, and the one behind it."""
        page = self.pages.page
        return (lo - self.base) // page, -((self.base - hi) // page)

    def place(self, outputs: AbstractSet[int], candidates: Collection[Extent]) -> None:
        """Map the pages with these indices onto output pages, the rest onto scratch.

        ``candidates`` are output extents that may be shared. If it raises, the range
        must be closed.
        """
        with self._moving(outputs) as inside:
            self._map(runs(inside - outputs))
            self._map(runs(inside & outputs), candidates)
            self._open(runs(inside))

    @contextmanager
    def _moving(self, pages: AbstractSet[int]) -> Iterator[set[int]]:
        """Unmap the extents that hold any of these pages; yield all theirs."""
        moved = {
            index: extent
            for index, extent in self._extents.items()
            if not pages.isdisjoint(range(index, index + extent.pages))
        }
        # Held meanwhile, so that scratch is not released only to be created again.
        for extent in moved.values():
            extent.ranges += 1
        with Release() as release:
            try:
                self._unmap(moved)
                yield {i + index for index, e in moved.items() for i in range(e.pages)}
            finally:
                release.each(self.pages.leave, moved.values())

    def mask_of(self, lo: Addr, hi: Addr) -> Mask:
        """Return the physical pages behind ``[lo, hi)``."""
        (first, stop), mask = self._indices(lo, hi), 0
        for index, extent in self._extents.items():
            if first < index + extent.pages and index < stop:
                start, end = max(first, index), min(stop, index + extent.pages)
                mask |= ((1 << end - start) - 1) << extent.first + start - index
        return Mask(mask)

    def is_asleep(self) -> bool:
        """Return whether it has pages, and none has memory that closing would free."""
        return bool(self.mask) and all(e.asleep for e in self._extents.values())

    def output_extents(self) -> list[Extent]:
        """Return the extents that hold outputs of this recording."""
        return [e for e in dict.fromkeys(self._extents.values()) if not e.scratch]

    def size(self) -> int:
        """Return the number of physical pages behind this range."""
        return self.mask.bit_count()

    def mappings(self) -> list[tuple[Addr, Extent]]:
        """Return what is mapped where, in address order."""
        return [(self._at(index), e) for index, e in sorted(self._extents.items())]

    # The end.

    def _revoke(self) -> None:
        """Refuse what was allocated while capturing to whoever still has it."""
        for made in self._made:
            storage = made()
            if storage is not None and storage.captured and storage.stale is None:
                storage.remedy = "Copy what is wanted of it into an array of your own"
                storage.revoke("it was made while a call was recorded that then failed")
        self._made.clear()

    def close(self) -> None:
        """Unmap what is not live, after its last use; give the addresses back.

        Called again when a lease on pages of a closed range ends.
        """
        self.closed = True
        self._revoke()
        live, known = self.pages.live, self.outsiders()
        with Release() as release:
            release(self.pages.settle, self.mask)
            if known and not self.pages.ends:
                # Whoever looks at what he has there is not to break the device.
                release(self._loan.less, self.pages.create_if_free)
            else:
                release(self._loan.take_back)
                free = {i: e for i, e in self._extents.items() if not e.mask & live}
                release(self._unmap, free)
                if not any(e.asleep for e in self._extents.values()):
                    self.pages.asleep.discard(self)
            if self._extents or known:
                self.pages.lingering[self] = None
            else:
                self.pages.lingering.pop(self, None)
                reserved, self._reserved = self._reserved, {}
                for at, size in reserved.items():
                    release(self.pages.driver.unreserve, at, size)
                release(self.pages.on_empty)

    def _idle(self, candidates: Iterable[Extent]) -> list[Extent]:
        """Return those of some extents that there are, and not in this range."""
        mine = set(self._extents.values())
        known = (e for e in candidates if e in self.pages.extents and not e.asleep)
        return [e for e in known if e not in mine]

    def _map(
        self,
        missing: Iterable[tuple[int, int]],
        outputs: Collection[Extent] | None = None,
    ) -> Iterable[tuple[int, int]]:
        """Map scratch, or else outputs, to runs ``(first, count)``; return these."""
        for first, count in missing:
            whole = [Stretch(first, count, 1, output=outputs is not None)]
            largest = grain(self.size() + count)
            # Of equals the first is to be used first: those are taken from the end.
            if outputs is None:
                self._map_folded(whole, self._loan.spare()[::-1], (), largest)
            else:
                self._map_folded(whole, (), self._idle(outputs)[::-1], largest)
        return missing

    def _map_folded(
        self,
        found: Sequence[Stretch],
        scratch: Sequence[Extent],
        outputs: Sequence[Extent],
        largest: int | None = None,
    ) -> list[tuple[int, int]]:
        """Map extents at the pages of stretches, as `fold` says; return where.

        ``scratch`` and ``outputs`` are those that there are; others are made. Of these,
        what is not needed in the end is given back; so it is if anything fails.
        """
        pages, made = self.pages, list[Extent]()
        try:
            while True:
                known = [*scratch, *outputs]
                sizes = [e.pages for e in scratch], [e.pages for e in outputs]
                plan = best_fold(found, *sizes, largest)
                for count, output in plan.made:
                    made.append(pages.create(count, scratch=not output))
                    known.append(made[-1])
                if all(e in pages.extents for e in known):
                    break
                # Making them has evicted those who kept others.
                left = [e for e in known if e in pages.extents]
                scratch = [e for e in left if e.scratch]
                outputs = [e for e in left if not e.scratch]
            for piece in plan.pieces:
                self._map_extent(piece.first, known[piece.extent])
        finally:
            with Release() as release:
                for extent in made:
                    if not extent.ranges:
                        release(pages.release, extent)
        return [(piece.first, piece.pages) for piece in plan.pieces]

    def _map_extent(self, index: int, extent: Extent) -> None:
        self.pages.driver.map(self._at(index), extent.awake_handle())
        # It may lie there already, at pages that are never alive when these are.
        if not self.mask & extent.mask:
            extent.ranges += 1
        self._extents[index] = extent
        self.mask = Mask(self.mask | extent.mask)

    def _open(self, mapped: Iterable[tuple[int, int]]) -> None:
        """Let the device use what was mapped: ``(first, count)``, in address order."""
        for first, count in touching(mapped):
            size = Size(count * self.pages.page)
            self.pages.driver.set_access(self._at(first), size, Access.READ_WRITE)

    def _at(self, index: int) -> Addr:
        return Addr(self.base + index * self.pages.page)

    def _unmap(self, extents: Mapping[int, Extent]) -> None:
        for index in extents:
            del self._extents[index]
        left = set(self._extents.values())
        gone = [e for e in dict.fromkeys(extents.values()) if e not in left]
        for extent in gone:
            self.mask = Mask(self.mask & ~extent.mask)
        with Release() as release:
            for index, extent in extents.items():
                size = Size(extent.pages * self.pages.page)
                if not extent.asleep:
                    release(self.pages.driver.unmap, self._at(index), size)
            release.each(self.pages.leave, gone)
