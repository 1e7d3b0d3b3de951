"""Which pages of a range may share physical pages, by when anything on them is alive.

A capture from one stream runs in the order that it was captured in. So two pages may
be one if nothing is ever alive on both at once, as two allocations may be one block
after the other. They need not be: what there is already may back more, in fewer
pieces. Pure.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from operator import le
from typing import Final, NamedTuple

from sapwood.units import Addr, Size, touching

_PIECES: Final = 16
"""About how many extents a large run is made of: a sixteenth of it, at the most,
cannot serve a smaller recording; sixteen handles still map in a fraction of a
millisecond on an H200."""


def runs(pages: Collection[int]) -> list[tuple[int, int]]:
    """Return ``(first, count)`` of each maximal run of adjacent page numbers."""
    return touching((page, 1) for page in sorted(pages))


def grain(total: int) -> int:
    """Return the largest extent, in pages, to create for ``total`` pages."""
    return power_below(max(1, total // _PIECES))


def stretch(length: int, available: Iterable[int]) -> int:
    """Return how long to make a run of at least ``length`` pages.

    Longer, where that lets existing extents, which are so large, cover it that would
    else leave a rest for new pages: mapping more of what exists costs nothing.
    """
    rest, larger = length, 0
    for size in sorted(available, reverse=True):
        if size <= rest:
            rest -= size
        else:
            larger = size
    return length - rest + larger if rest and larger else length


def power_below(number: int) -> int:
    """Return the largest power of two that is at most ``number``, which is positive."""
    return 1 << (number.bit_length() - 1)


def power_above(number: int) -> int:
    """Return the smallest power of two that is at least a positive ``number``."""
    return 1 << (number - 1).bit_length()


_CHANGE: Final = 3
"""A new extent is made only where smaller ones come to this many times its size, less
one page each. So whatever a smaller recording needs can be put together exactly, in
several places at once."""


Sizes = Sequence[int]
"""Of extents, in pages."""


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

    def costs(self) -> tuple[int, int]:
        """Return the number of new pages, and of pieces."""
        return sum(pages for pages, _ in self.made), len(self.pieces)


def stretches(
    lives: Sequence[Life], outputs: AbstractSet[int], base: Addr, page: Size
) -> list[Stretch]:
    """Return the pages that lives touch, counted from ``base``, in address order.

    Two pages are alive at the same time exactly if their masks meet. ``base`` is that
    of a page; ``outputs`` are the pages that hold one.
    """
    blocks, end = _moments(lives)
    spans: dict[tuple[int, int], int] = {}
    for (lo, hi), mask in blocks.items():
        span = (lo - base) // page, -((base - hi) // page)
        spans[span] = spans.get(span, 0) | mask
    edges = {edge for span in spans for edge in span}
    edges |= {edge for first, count in runs(outputs) for edge in (first, first + count)}
    cells = sorted(edges)
    number = {edge: i for i, edge in enumerate(cells)}
    alive: list[int | None] = [None] * len(cells)
    for (first, stop), mask in spans.items():
        for i in range(number[first], number[stop]):
            alive[i] = (alive[i] or 0) | mask
    found: list[Stretch] = []
    for i, lasts in enumerate(alive):
        if lasts is None:
            continue
        output = cells[i] in outputs
        # An output that is said not to last is not understood.
        mask = lasts if not output or lasts & end else 2 * end - 1
        found.append(Stretch(cells[i], cells[i + 1] - cells[i], mask, output))
    return _merged(found, lambda last, each: last[2:] == each[2:])


def _moments(lives: Sequence[Life]) -> tuple[dict[tuple[Addr, Addr], int], int]:
    """Return at which births there is life in each block, as masks, and the end's.

    Most blocks are used again and again.
    """
    births = sorted({life.born for life in lives})
    bits = {born: 1 << i for i, born in enumerate(births)}
    end = 1 << len(births)
    found: dict[tuple[Addr, Addr], int] = {}
    for lo, hi, born, died in lives:
        after = 2 * end if died is None else 1 << bisect_left(births, died)
        found[lo, hi] = found.get((lo, hi), 0) | (after - bits[born])
    return found, end


def _merged(
    found: Iterable[Stretch], fit: Callable[[Stretch, Stretch], bool]
) -> list[Stretch]:
    """Return stretches, given in address order, with neighbours that fit as one."""
    more: list[Stretch] = []
    for each in found:
        last = more[-1] if more else each
        if last.first + last.pages == each.first and fit(last, each):
            pages, alive = last.pages + each.pages, last.alive | each.alive
            more[-1] = Stretch(last.first, pages, alive, each.output)
        else:
            more.append(each)
    return more


def joined(found: Iterable[Stretch]) -> list[Stretch]:
    """Return stretches, given in address order, with neighbours as one.

    It is alive when any of them is. Those of outputs stay as they are.
    """
    return _merged(found, lambda last, each: not (last.output or each.output))


def best_fold(
    found: Sequence[Stretch], scratch: Sizes, outputs: Sizes, largest: int | None = None
) -> Fold:
    """Choose extents as `fold` does, for `joined` stretches if that is cheaper.

    It is where it takes fewer pieces and no more new pages, or the other way round:
    what there is may as well be used, and a driver charges by the piece.
    """
    coarse = fold(joined(found), scratch, outputs, largest)
    # Outputs are the same either way, and each bit of a length is a piece at least.
    least = sum(each.pages.bit_count() for each in found)
    if len(coarse.pieces) < least and all(output for _, output in coarse.made):
        return coarse
    fine = fold(found, scratch, outputs, largest)
    costs, others = coarse.costs(), fine.costs()
    return coarse if costs != others and all(map(le, costs, others)) else fine


def fold(
    found: Iterable[Stretch], scratch: Sizes, outputs: Sizes, largest: int | None = None
) -> Fold:
    """Choose extents for all pages, so that none holds two that are alive at once.

    ``scratch`` and ``outputs`` are the sizes, in pages, of the extents that there are.
    Output pages are backed by output extents; others are, too, where these serve in
    this range already. New extents are as large as may be up to ``largest``; without
    it, as `_CHANGE` says.
    """
    room = _Room(scratch, outputs, largest)
    pieces: list[Piece] = []
    # The largest first, as only they can use the largest extents.
    for each in sorted(found, key=_rank):
        room.back(each, pieces)
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
    alive: int = 0


class _Room:
    """The extents that there are and those to be made: used ones, and idle ones."""

    def __init__(self, scratch: Sizes, outputs: Sizes, largest: int | None) -> None:
        self.made: list[tuple[int, bool]] = []
        self._largest = largest
        self._used: dict[int, list[_Slot]] = {}
        self._idle: dict[tuple[int, bool], list[_Slot]] = {}
        self._counts = {False: Counter(scratch), True: Counter(outputs)}
        self._sizes = sorted({*scratch, *outputs}, reverse=True)
        self._numbers = itertools.count()
        for output, there in ((False, scratch), (True, outputs)):
            for pages in there:
                slot = _Slot(next(self._numbers), pages, output)
                self._idle.setdefault((pages, output), []).append(slot)

    def back(self, stretch: Stretch, pieces: list[Piece]) -> None:
        """Add the pieces that back a stretch, the largest that there are first."""
        at, stop = stretch.first, stretch.first + stretch.pages
        while at < stop:
            for pages in self._sizes:
                while pages <= stop - at:
                    slot = self._fitting(pages, stretch)
                    if slot is None:
                        break
                    pieces.append(self._using(slot, stretch, at))
                    at += pages
            if at < stop:
                # Pages that are never alive may all be this one.
                slot = self._make(stop - at, output=stretch.output)
                pieces.append(self._using(slot, stretch, at))
                at += slot.pages

    def _fitting(self, pages: int, stretch: Stretch) -> _Slot | None:
        alive, output = stretch.alive, stretch.output
        for slot in self._used.get(pages, ()):
            if not slot.alive & alive and slot.output >= output:
                return slot
        idle = self._idle.get((pages, output))
        return self._taken(idle.pop()) if idle else None

    def _taken(self, slot: _Slot) -> _Slot:
        self._used.setdefault(slot.pages, []).append(slot)
        return slot

    def _using(self, slot: _Slot, stretch: Stretch, at: int) -> Piece:
        slot.alive |= stretch.alive
        return Piece(at, slot.pages, slot.number)

    def _make(self, most: int, *, output: bool) -> _Slot:
        counts, pages = self._counts[output], power_below(most)
        if self._largest is not None:
            pages = min(pages, self._largest)
        else:
            while pages > 1 and _change(counts, pages) < _CHANGE * (pages - 1):
                pages //= 2
        self.made.append((pages, output))
        counts[pages] += 1
        if pages not in self._sizes:
            self._sizes = sorted((*self._sizes, pages), reverse=True)
        return self._taken(_Slot(next(self._numbers), pages, output))


def _change(sizes: Counter[int], pages: int) -> int:
    return sum(size * count for size, count in sizes.items() if size < pages)
