"""Which pages of a range may share physical pages, by when anything on them is alive.

A capture from one stream runs in the order that it was captured in. So two pages may
be one if nothing is ever alive on both at once, as two allocations may be one block
after the other. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sapwood.memory.cover import power_below
from sapwood.units import Addr, Size, align_down, align_up

__all__ = ["Fold", "Life", "Piece", "Stretch", "fold", "stretches"]

CHANGE: Final = 3
"""A new extent is made only where smaller ones come to this many times its size, less
one page each. So whatever a smaller recording needs can be put together exactly, in
several places at once."""


class Life(NamedTuple):
    """Bytes ``[lo, hi)`` that are in use from the moment ``born`` until ``died``.

    Moments are in the order of capture; ``died`` is None for what is still in use at
    its end. Bytes that die as they are born are never used, but could be touched.
    """

    lo: Addr
    hi: Addr
    born: int
    died: int | None


class Stretch(NamedTuple):
    """Adjacent pages of a range, all alive at the same times.

    ``alive`` is the set of those times, as a mask; ``output`` says whether they are to
    be output pages.
    """

    first: int
    pages: int
    alive: int
    output: bool

    def indices(self) -> range:
        """Return the numbers of the pages, from the start of their range."""
        return range(self.first, self.first + self.pages)


class Piece(NamedTuple):
    """Which extent to map at a page; ``extent`` is its place in a `Fold`'s extents."""

    first: int
    pages: int
    extent: int


@dataclass(frozen=True, slots=True)
class Fold:
    """How stretches are backed: ``pieces``, in address order.

    Extents are numbered: those that there are of scratch, then of outputs, then the
    ``made``, which are ``(pages, output)`` each.
    """

    pieces: tuple[Piece, ...]
    made: tuple[tuple[int, bool], ...]


def stretches(
    lives: Sequence[Life], outputs: AbstractSet[int], base: Addr, page: Size
) -> list[Stretch]:
    """Return the pages that lives touch, counted from ``base``, in address order.

    Two pages are alive at the same time exactly if their masks meet. ``outputs`` are
    the pages that hold one.
    """
    told = [
        ((align_down(lo, page) - base) // page, (align_up(hi, page) - base) // page)
        for lo, hi, *_ in lives
    ]
    edges = {edge for span in told for edge in span}
    edges |= outputs | {index + 1 for index in outputs}
    cells = sorted(edges)
    number = {edge: i for i, edge in enumerate(cells)}
    alive: list[int | None] = [None] * len(cells)
    births = sorted({life.born for life in lives})
    end = 1 << len(births)
    for (first, stop), life in zip(told, lives, strict=True):
        mask = _moments(life, births)
        for i in range(number[first], number[stop]):
            alive[i] = (alive[i] or 0) | mask
    found: list[Stretch] = []
    for i, mask_ in enumerate(alive):
        if mask_ is None:
            continue
        output = cells[i] in outputs
        # An output that is said not to last is not understood.
        times = mask_ if not output or mask_ & end else 2 * end - 1
        _append(found, Stretch(cells[i], cells[i + 1] - cells[i], times, output))
    return found


def _moments(life: Life, births: Sequence[int]) -> int:
    """Return at which births a life lasts, as a mask; the end is one more."""
    last = len(births) + 1 if life.died is None else bisect_left(births, life.died)
    first = bisect_left(births, life.born)
    return (1 << last) - (1 << first) if first < last else 0


def _append(found: list[Stretch], more: Stretch) -> None:
    if found:
        first, pages, *about = found[-1]
        if first + pages == more.first and about == [more.alive, more.output]:
            found[-1] = Stretch(first, pages + more.pages, more.alive, more.output)
            return
    found.append(more)


def fold(
    found: Iterable[Stretch], scratch: Sequence[int], outputs: Sequence[int]
) -> Fold:
    """Choose extents for all pages, so that none holds two that are alive at once.

    ``scratch`` and ``outputs`` are the sizes, in pages, of the extents that there are.
    Output pages are backed by output extents; others are, too, where these serve in
    this range already.
    """
    room = _Room(scratch, outputs)
    pieces: list[Piece] = []
    # The largest first, as only they can use the largest extents.
    for each in sorted(found, key=_rank):
        at, stop = each.first, each.first + each.pages
        while at < stop:
            slot = room.take(each, stop - at)
            pieces.append(Piece(at, slot.pages, slot.number))
            at += slot.pages
    return Fold(tuple(sorted(pieces)), tuple(room.made))


def _rank(stretch: Stretch) -> tuple[bool, bool, int, int, int]:
    # Of equals those that last longest, outputs before all: taken back in time, the
    # first extent that is free is as good as any.
    death = stretch.alive.bit_length()
    return not stretch.output, not death, -stretch.pages, -death, stretch.first


@dataclass(slots=True)
class _Slot:
    """An extent; ``alive`` is when anything on it is."""

    number: int
    pages: int
    output: bool
    alive: int = field(default=0)


class _Room:
    """The extents that there are and those to be made: used ones, and idle ones."""

    def __init__(self, scratch: Sequence[int], outputs: Sequence[int]) -> None:
        self.made: list[tuple[int, bool]] = []
        self._used: dict[int, list[_Slot]] = {}
        self._idle: dict[tuple[int, bool], list[_Slot]] = {}
        self._sizes = {False: Counter(scratch), True: Counter(outputs)}
        self._count = len(scratch) + len(outputs)
        for i, pages in enumerate((*scratch, *outputs)):
            slot = _Slot(i, pages, i >= len(scratch))
            self._idle.setdefault((pages, slot.output), []).append(slot)

    def take(self, stretch: Stretch, most: int) -> _Slot:
        """Return an extent of at most so many pages for a part of a stretch."""
        # What it takes is alive by then, and is not found for its next part.
        sizes = {*self._used, *(pages for pages, _ in self._idle)}
        for pages in sorted(sizes, reverse=True):
            slot = self._fitting(pages, stretch) if pages <= most else None
            if slot is not None:
                return self._using(slot, stretch)
        return self._using(self._make(most, output=stretch.output), stretch)

    def _fitting(self, pages: int, stretch: Stretch) -> _Slot | None:
        for slot in self._used.get(pages, ()):
            if not slot.alive & stretch.alive and slot.output >= stretch.output:
                return slot
        idle = self._idle.get((pages, stretch.output))
        if not idle:
            return None
        slot = idle.pop()
        self._used.setdefault(pages, []).append(slot)
        return slot

    def _using(self, slot: _Slot, stretch: Stretch) -> _Slot:
        slot.alive |= stretch.alive
        return slot

    def _make(self, most: int, *, output: bool) -> _Slot:
        sizes, pages = self._sizes[output], power_below(most)
        while pages > 1 and _change(sizes, pages) < CHANGE * (pages - 1):
            pages //= 2
        slot = _Slot(self._count, pages, output)
        self._count += 1
        self.made.append((pages, output))
        sizes[pages] += 1
        self._used.setdefault(pages, []).append(slot)
        return slot


def _change(sizes: Counter[int], pages: int) -> int:
    return sum(size * count for size, count in sizes.items() if size < pages)
