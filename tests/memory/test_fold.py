"""Which pages may be one, and the extents that pages are folded onto."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from operator import le, or_

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sapwood.memory.fold import (
    Life,
    best_fold,
    fold,
    joined,
    stretches,
)
from sapwood.units import Addr, Size, touching
from tests.support.folded import covered

PAGE = Size(8)
BASE = Addr(1 << 20)
PAGES = 12
END = 9


@st.composite
def life(draw):
    """Draw bytes and when they were in use: perhaps never, perhaps to the end."""
    lo = draw(st.integers(0, PAGES * PAGE - 1))
    hi = draw(st.integers(lo + 1, min(lo + 4 * PAGE, PAGES * PAGE)))
    born = draw(st.integers(0, END - 1))
    died = draw(st.one_of(st.none(), st.integers(born, END)))
    return Life(Addr(BASE + lo), Addr(BASE + hi), born, died)


lives = st.lists(life(), max_size=12)
outputs = st.sets(st.integers(0, PAGES - 1))
powers = st.integers(0, 3).map(lambda n: 1 << n)
sizes = st.lists(powers, max_size=5)
ways = pytest.mark.parametrize("choose", [fold, best_fold])


def _touched(each):
    return range((each.lo - BASE) // PAGE, -(-(each.hi - BASE) // PAGE))


def _times(given_lives, index):
    """Return when anything on a page is in use; moments go on behind the last one."""
    return {
        moment
        for each in given_lives
        if index in _touched(each)
        for moment in range(each.born, END + 1 if each.died is None else each.died)
    }


def _by_page(found):
    return {index: each for each in found for index in each.indices()}


@given(lives, outputs)
def test_stretches_are_the_pages_touched(given_lives, chosen):
    """They hold those, each once and in order, outputs apart from the others."""
    found = stretches(given_lives, chosen, BASE, PAGE)
    held = [index for each in found for index in each.indices()]
    assert held == sorted({i for each in given_lives for i in _touched(each)})
    for index, each in _by_page(found).items():
        assert each.output == (index in chosen)


@given(lives, outputs)
def test_masks_meet_where_pages_are_alive_at_once(given_lives, chosen):
    """Exactly then, but that an output which does not last is alive all the time."""
    pages = _by_page(stretches(given_lives, chosen, BASE, PAGE))
    times = {index: _times(given_lives, index) for index in pages}
    for index in chosen & pages.keys():
        if END not in times[index]:
            times[index] = set(range(END + 1))
    for one in pages:
        for other in pages:
            meet = bool(pages[one].alive & pages[other].alive)
            assert meet == bool(times[one] & times[other])


@ways
@given(lives, outputs, sizes, sizes)
def test_no_extent_holds_what_is_alive_at_once(
    choose, given_lives, chosen, scratch, idle
):
    """Pieces are the pages, on extents as large, whose pages hold one at a time."""
    found = stretches(given_lives, chosen, BASE, PAGE)
    plan = choose(found, scratch, idle)
    extents = [*((size, False) for size in scratch), *((size, True) for size in idle)]
    extents += plan.made
    pages = _by_page(found)
    covered = [p.first + i for p in plan.pieces for i in range(p.pages)]
    assert covered == sorted(pages)
    alive = Counter()
    for piece in plan.pieces:
        assert extents[piece.extent][0] == piece.pages
        for i in range(piece.pages):
            place, page = (piece.extent, i), pages[piece.first + i]
            assert not alive[place] & page.alive
            alive[place] |= page.alive


@ways
@given(lives, outputs, sizes, sizes)
def test_outputs_lie_on_output_extents(choose, given_lives, chosen, scratch, idle):
    """Others lie on scratch, or on an output extent that an output has brought in."""
    found = stretches(given_lives, chosen, BASE, PAGE)
    plan = choose(found, scratch, idle)
    kinds = [False] * len(scratch) + [True] * len(idle)
    kinds += [output for _, output in plan.made]
    brought = {p.extent for p in plan.pieces if _by_page(found)[p.first].output}
    for piece in plan.pieces:
        assert kinds[piece.extent] == (piece.extent in brought)


@ways
@given(lives, outputs, sizes, sizes)
def test_folding_never_takes_more_than_not_folding(
    choose, given_lives, chosen, scratch, idle
):
    """What is mapped is at most the pages; what is made is needed, a power of two."""
    found = stretches(given_lives, chosen, BASE, PAGE)
    plan = choose(found, scratch, idle)
    used = {piece.extent: piece.pages for piece in plan.pieces}
    assert sum(used.values()) <= sum(each.pages for each in found)
    old = len(scratch) + len(idle)
    assert {each for each in used if each >= old} == set(
        range(old, old + len(plan.made))
    )
    assert all(size & (size - 1) == 0 for size, _ in plan.made)


@given(lives, outputs)
def test_joined_stretches_are_the_same_pages(given_lives, chosen):
    """Outputs as they were, and no others next to each other; alive when a part is."""
    found = stretches(given_lives, chosen, BASE, PAGE)
    more = joined(found)
    pages, whole = _by_page(found), _by_page(more)
    assert list(whole) == list(pages)
    assert [each for each in more if each.output] == [s for s in found if s.output]
    rest = [each for each in more if not each.output]
    assert touching(each[:2] for each in rest) == [each[:2] for each in rest]
    for each in rest:
        assert each.alive == reduce(or_, (pages[i].alive for i in each.indices()))
        assert not any(pages[index].output for index in each.indices())


@given(lives, outputs, sizes, sizes)
def test_the_best_fold_costs_no_more(given_lives, chosen, scratch, idle):
    """New pages and pieces are as few as by folding finely; outputs lie as they did."""
    found = stretches(given_lives, chosen, BASE, PAGE)
    fine, best = fold(found, scratch, idle), best_fold(found, scratch, idle)
    coarse = fold(joined(found), scratch, idle)
    assert best in (fine, coarse)
    assert all(map(le, best.costs(), fine.costs()))
    assert best.costs() == coarse.costs() or not all(
        map(le, coarse.costs(), best.costs())
    )
    lone = [[p for p in plan.pieces if p.first in chosen] for plan in (fine, best)]
    made = [[each for each in plan.made if each[1]] for plan in (fine, best)]
    assert lone[0] == lone[1]
    assert made[0] == made[1]


@given(lives, outputs, st.lists(powers, max_size=20), sizes)
def test_what_is_idle_is_mapped_in_few_pieces(given_lives, chosen, scratch, idle):
    """Where it would do without folding, there are no more pieces than that takes."""
    found = stretches(given_lives, chosen, BASE, PAGE)
    covers = covered(_runs(found), scratch)
    assume(covers is not None)
    plan = best_fold(found, scratch, idle)
    lone = sum(piece.first in chosen for piece in plan.pieces)
    assert len(plan.pieces) <= lone + len(covers)


@given(lives, outputs)
def test_where_all_is_idle_pieces_are_the_bits_of_lengths(given_lives, chosen):
    """With some of each size idle nothing is new, and each run has few pieces."""
    found = stretches(given_lives, chosen, BASE, PAGE)
    there = [1 << n for n in range(4)] * PAGES
    plan = best_fold(found, there, there)
    least = sum(each.pages.bit_count() for each in found if each.output)
    assert plan.made == ()
    assert len(plan.pieces) == least + sum(count.bit_count() for count in _runs(found))


def _runs(found):
    """Return the lengths of the runs of pages that hold no output."""
    return [n for _, n in touching(each[:2] for each in found if not each.output)]


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.one_of(st.none(), st.integers(1, 9))),
        max_size=12,
    ),
    st.sets(st.integers(0, 11)),
)
def test_lone_pages_take_as_many_as_are_alive_at_once(spans, chosen):
    """Where each page is alive once, and no two are neighbours, nothing is wasted."""
    given_lives = [
        Life(
            Addr(BASE + 2 * i * PAGE),
            Addr(BASE + 2 * i * PAGE + 1),
            born,
            None if length is None else born + length,
        )
        for i, (born, length) in enumerate(spans)
    ]
    lasting = {2 * i for i in chosen if i < len(spans) and given_lives[i].died is None}
    found = stretches(given_lives, lasting, BASE, PAGE)
    plan = fold(found, (), ())
    most = max(
        (sum(moment in _times([each], _touched(each)[0]) for each in given_lives))
        for moment in range(END + 10)
    )
    assert len(plan.made) == most


@given(st.integers(5, 200), st.integers(0, 3))
def test_what_one_recording_leaves_serves_a_smaller_one(large, parts):
    """New extents leave change: shorter stretches, up to three, need none besides."""
    found = stretches([_alive(0, large)], set(), BASE, PAGE)
    made = [pages for pages, _ in fold(found, (), ()).made]
    assert sum(made) == large
    less = large // (parts + 2)
    apart = [_alive(i * (less + 1), less) for i in range(parts)]
    assert fold(stretches(apart, set(), BASE, PAGE), made, ()).made == ()


def _alive(first, pages):
    lo = Addr(BASE + first * PAGE)
    return Life(lo, Addr(lo + pages * PAGE), 0, None)
