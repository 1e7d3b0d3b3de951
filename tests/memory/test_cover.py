"""Runs of pages, and the extents that cover them."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from sapwood.memory.fold import Stretch, fold, grain, runs, stretch
from sapwood.units import touching

powers = st.integers(0, 5).map(lambda n: 1 << n)
available = st.dictionaries(powers, st.integers(0, 3), max_size=4)


def _cover(lengths, counts, largest):
    """Return the extents of runs that are in use at once, and whether they are new."""
    starts = [0, *accumulate(length + 1 for length in lengths)]
    found = [
        Stretch(start, length, 1, output=False)
        for start, length in zip(starts, lengths, strict=False)
        if length
    ]
    sizes = [*Counter(counts).elements()]
    plan = fold(found, sizes, (), largest)
    assert len({each.extent for each in plan.pieces}) == len(plan.pieces)
    return [
        [
            (each.pages, each.extent < len(sizes))
            for each in plan.pieces
            if start <= each.first < start + length
        ]
        for start, length in zip(starts, lengths, strict=False)
    ]


def _reachable(counts):
    """Return every number of pages that some of the extents are together."""
    sums = {0}
    for size, count in counts.items():
        for _ in range(count):
            sums |= {each + size for each in sums}
    return sums


@given(st.sets(st.integers(0, 60)))
def test_runs_are_the_pages_and_maximal(pages):
    """Runs hold exactly the pages, in order, and no two of them touch."""
    found = runs(pages)
    held = [range(first, first + count) for first, count in found]
    assert list(chain(*held)) == sorted(pages)
    assert all(count > 0 for _, count in found)
    for (first, count), (second, _) in pairwise(found):
        assert first + count < second


@given(st.sets(st.integers(0, 60)), st.data())
def test_spans_that_touch_are_runs(pages, data):
    """However runs are cut, their parts come to the same runs."""
    parts = []
    for first, count in runs(pages):
        cuts = data.draw(st.sets(st.integers(first + 1, first + count)))
        edges = sorted({first, first + count} | {c for c in cuts if c < first + count})
        parts += [(lo, hi - lo) for lo, hi in pairwise(edges)]
    assert touching(parts) == runs(pages)


@given(st.integers(0, 10_000))
def test_a_grain_is_about_a_sixteenth(total):
    """It is a power of two, at most a sixteenth, and more than half of that."""
    found = grain(total)
    assert found & (found - 1) == 0
    assert found == 1 or found * 16 <= total < found * 32


@given(st.lists(st.integers(0, 70), max_size=4), available, powers)
def test_a_cover_is_made_of_candidates_and_new_extents(lengths, counts, largest):
    """Pieces add up; an extent is used once; new ones are powers of two, not large."""
    found = _cover(lengths, counts, largest)
    assert [sum(size for size, _ in pieces) for pieces in found] == lengths
    used = Counter(size for size, exists in chain(*found) if exists)
    assert all(number <= counts.get(size, 0) for size, number in used.items())
    for size, exists in chain(*found):
        assert size & (size - 1) == 0
        assert exists or size <= largest


@given(st.integers(0, 70), available, powers)
def test_a_cover_of_one_run_makes_as_little_as_possible(length, counts, largest):
    """No choice among the candidates would leave fewer pages to be made."""
    (pieces,) = _cover([length], counts, largest)
    best = max(each for each in _reachable(counts) if each <= length)
    assert sum(size for size, exists in pieces if not exists) == length - best


@given(st.integers(0, 70), available)
def test_a_stretched_run_needs_nothing_new(length, counts):
    """A run gets longer only where what exists then covers all of it."""
    stretched = stretch(length, Counter(counts).elements())
    assert stretched >= length
    reachable = _reachable(counts)
    if stretched > length:
        assert length not in reachable
        assert stretched in reachable
    else:
        assert length in reachable or max(reachable) < length
