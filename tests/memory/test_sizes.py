"""One function that a framework captures at one size after the other, and its cost.

The lives are those of a small transformer, by the segments that torch cuts.
"""

from __future__ import annotations

import pytest

from sapwood.memory.fold import Life, fold, stretches
from sapwood.memory.range import Range
from sapwood.memory.snapshot import snapshot
from sapwood.memory.validate import validate
from sapwood.units import Addr, touching

SIZES = (64, 48, 32, 16, 8, 4, 2, 1)
SMALL, MIDDLE = 1, 10
"""How large segments are, in pages, of blocks up to half a page, and up to five."""


class Segments:
    """An allocator of the best fit, which joins what is free in a segment."""

    def __init__(self, base, page):
        self.page, self.stop, self.moment = page, base, 0
        self.free, self.taken, self.over = [], {}, []

    def take(self, pages):
        """Return the address of a block."""
        self.moment += 1
        size = max(1, int(pages * self.page))
        small = 2 * size <= self.page
        fitting = [each for each in self.free if each[0] >= size and each[3] == small]
        if fitting:
            have, at, segment, _ = min(fitting)
            self.free.remove(min(fitting))
        else:
            whole = -(-size // self.page)
            whole = SMALL if small else max(whole, MIDDLE) if whole <= 5 else whole
            have, at, segment = whole * self.page, self.stop, self.stop
            self.stop = Addr(at + have)
        if 2 * (have - size) > (0 if small else self.page):
            self.free.append((have - size, Addr(at + size), segment, small))
            have = size
        self.taken[at] = have, size, segment, small, self.moment
        return at

    def give(self, at):
        """Free a block."""
        self.moment += 1
        have, size, segment, small, born = self.taken.pop(at)
        self.over.append(Life(at, Addr(at + size), born, self.moment))
        here = [each for each in self.free if each[2] == segment]
        self.free = [each for each in self.free if each[2] != segment]
        merged = touching(sorted([*((a, n) for n, a, *_ in here), (at, have)]))
        self.free += [(n, Addr(a), segment, small) for a, n in merged]

    def lives(self):
        """Return all that has lived, and what lives."""
        return self.over + [
            Life(at, Addr(at + size), born, None)
            for at, (_, size, _, _, born) in self.taken.items()
        ]


def _transformer(base, page, batch, *, trains):
    """Return the lives of four blocks, and the output; ``trains`` keeps all for later.

    A row of activations is an eighth of a page.
    """
    segments, kept = Segments(base, page), []
    drop = kept.append if trains else segments.give
    given = segments.take(batch / 8)
    for _ in range(4):
        normed = segments.take(batch / 8)
        heads = segments.take(3 * batch / 8)
        drop(normed)
        mixed = segments.take(batch / 8)
        drop(heads)
        added = segments.take(batch / 8)
        drop(mixed)
        drop(given)
        wide = segments.take(batch / 2)
        bent = segments.take(batch / 2)
        drop(wide)
        given = segments.take(batch / 8)
        drop(bent)
        drop(added)
    output = segments.take(batch / 100)
    for block in (given, *reversed(kept)):
        segments.give(block)
    size = segments.taken[output][1]
    return segments.lives(), (output, Addr(output + size))


class Finely:
    """The extents that there would be if all were folded finely, and the pieces."""

    def __init__(self):
        self.extents, self.pieces = {False: [], True: []}, 0

    def fold(self, found):
        """Fold another recording, and return how many pieces that takes."""
        plan = fold(found, self.extents[False], self.extents[True])
        for pages, output in plan.made:
            self.extents[output].append(pages)
        self.pieces += len(plan.pieces)
        return len(plan.pieces)

    def pages(self):
        """Return how many pages there would be."""
        return sum(map(sum, self.extents.values()))


def _record(bench, batch, *, trains):
    """Record at a size; return the range, its stretches, and the calls of folding."""
    pages = bench.device.pages
    range_ = Range.reserve(pages)
    base, _ = range_.lend(pages.page)
    lives, output = _transformer(base, pages.page, batch, trains=trains)
    outputs = range_.page_indices([output])
    # What is of other sizes is never in use at the same time.
    shared = [extent for extent in pages.extents if not extent.scratch]
    bench.recorded.reset()
    range_.fold(lives, outputs, shared)
    found = stretches(lives, outputs, range_.base, pages.page)
    return range_, found, bench.recorded.counts()


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("sizes", [SIZES, SIZES[::-1]])
def test_all_sizes_cost_no_more_than_folded_finely(open_bench, sizes, trains):
    """Neither pieces nor pages; each piece is mapped once, each run opened once."""
    with open_bench(pages=1024) as bench:
        finely, ranges, maps = Finely(), {}, 0
        for size in sizes:
            range_, found, calls = _record(bench, size, trains=trains)
            ranges[str(size)] = range_
            finely.fold(found)
            maps += calls["map"]
            assert calls["map"] == len(range_.mappings())
            assert calls["set_access"] == len(touching(each[:2] for each in found))
        assert maps <= finely.pieces
        assert bench.device.pages.mapped() <= finely.pages()
        assert validate(snapshot(bench.device, ranges)) == []
        for range_ in ranges.values():
            range_.close()


@pytest.mark.parametrize("trains", [False, True])
def test_what_large_sizes_left_backs_small_ones_in_few_pieces(open_bench, trains):
    """They make nothing, and each is mapped by at most six calls."""
    with open_bench(pages=1024) as bench:
        finely, ranges = Finely(), []
        for size in SIZES:
            range_, found, calls = _record(bench, size, trains=trains)
            ranges.append(range_)
            pieces = finely.fold(found)
            if size <= 16:
                assert "create" not in calls
                assert calls["map"] <= min(6, pieces)
        for range_ in ranges:
            range_.close()
