"""Changing a plan keeps it one, and only ever lowers what it is asked to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.allocator.planner import Buffer, lower_bound, plan, violations
from sapwood.allocator.planner.effort import Effort
from sapwood.allocator.planner.improve import Mend, Places, improve
from sapwood.allocator.planner.instance import Beside, Instance
from sapwood.allocator.planner.orders import fit, size_order
from sapwood.testing.lifetimes import KINDS, PERFECT, make_lifetimes

lives = st.tuples(st.integers(0, 400), st.integers(1, 60), st.integers(1, 40))
rows = st.lists(lives, min_size=1, max_size=150)
alignments = st.sampled_from([1, 16])


def _buffers(drawn):
    return [Buffer(lower, lower + span, size) for lower, span, size in drawn]


def _never():
    return False


def _always():
    return True


def _piled(instance):
    """Return where buffers begin that all lie above one another."""
    return np.cumsum(instance.size) - instance.size


@given(rows)
def test_beside_are_those_in_use_at_once(drawn):
    """Each buffer's company is what a look at all pairs finds; a second time, too."""
    instance = Instance.of(_buffers(drawn), 1)
    beside = Beside(instance)
    lower, upper = instance.lower, instance.upper
    for number in [*range(instance.count)] * 2:
        met = (lower < upper[number]) & (upper > lower[number])
        met[number] = False
        assert sorted(beside[number]) == [*np.flatnonzero(met)]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=12),
    st.integers(1, 12),
    st.integers(0, 30),
    st.integers(0, 9),
)
def test_places_cost_what_is_in_the_way(others, size, more, seed):
    """A free place touches nothing; without one, none is in the way of less."""
    top = size + more
    begins = np.array([begin for begin, _ in others], np.int64)
    ends = begins + np.array([length for _, length in others], np.int64)
    weights = np.random.default_rng(seed).integers(1, 9, len(others)).astype(float)
    costs = [
        weights[(begins < at + size) & (ends > at)].sum() for at in range(more + 1)
    ]
    places = Places(begins, ends, size, top)
    free = places.tightest(top)
    assert (free is None) == (min(costs) > 0)
    if free is not None:
        assert costs[free] == 0
    at = places.cheapest(weights, np.random.default_rng(seed))
    assert 0 <= at <= more
    assert costs[at] <= 2 * min(costs)


@given(rows, alignments, st.integers(0, 60), st.integers(0, 99))
def test_lowering_keeps_a_plan_or_leaves_it(drawn, alignment, moves, share):
    """A buffer comes within a height, as all that moved does; or all is as it was."""
    buffers = _buffers(drawn)
    instance = Instance.of(buffers, alignment)
    before = _piled(instance)
    mend = Mend(instance, before, 0)
    bound = lower_bound(buffers, alignment)
    height = bound + (instance.height(mend.begins) - bound) * share // 100
    above = mend.above(height)
    for number in above[:1]:
        held = mend.lower(number, height, moves, _never)
        after = mend.begins.copy()
        assert not violations(buffers, instance.offsets(after), alignment)
        moved = np.flatnonzero(after != before)
        assert not set(mend.above(height)) & set(moved.tolist())
        assert (number in moved) == held
        assert held or (after == before).all()


@given(rows)
def test_a_late_lowering_changes_nothing(drawn):
    """Once it is late, all stays where it was."""
    instance = Instance.of(_buffers(drawn), 1)
    before = _piled(instance)
    mend = Mend(instance, before, 0)
    height = instance.height(mend.begins) - 1
    for number in mend.above(height):
        assert not mend.lower(number, height, 99, _always)
    assert (mend.begins == before).all()


@given(rows, st.integers(0, 40))
def test_parts_are_apart(drawn, gap):
    """Parts are the whole in order; each ends before the next begins, and is in one."""
    buffers = _buffers(drawn)
    buffers += [
        b._replace(lower=b.lower + 460 + gap, upper=b.upper + 460 + gap)
        for b in buffers
    ]
    instance = Instance.of(buffers, 1)
    parts = instance.parts()
    assert len(parts) > 1
    start = over = 0
    for first, part in parts:
        assert first == start
        lower, upper = (
            times[start : start + part.count]
            for times in (instance.lower, instance.upper)
        )
        assert min(lower) >= over
        assert (lower - lower[0] == part.lower).all()
        assert (upper - lower[0] == part.upper).all()
        assert len(part.parts()) == 1
        start, over = start + part.count, max(upper)
    assert start == instance.count


@given(rows, st.integers(0, 12), alignments)
def test_improving_is_sound_and_repeats(drawn, steps, alignment):
    """From any plan it makes another, no higher, the same from the same seed."""
    buffers = _buffers(drawn)
    instance = Instance.of(buffers, alignment)
    enough = lower_bound(buffers, alignment)
    begins = _piled(instance)
    found, again = (
        improve(instance, begins, Effort(enough, 60.0, most=steps), 1) for _ in range(2)
    )
    assert (found == again).all()
    assert instance.height(found) <= instance.height(begins)
    assert not violations(buffers, instance.offsets(found), alignment)


@pytest.mark.parametrize("kind", ["caches", "mixed", "powers", "requests", "tails"])
def test_mending_beats_the_largest_first(kind):
    """Of 1,200 buffers in no order, it takes most of what greed is above the bound."""
    buffers = make_lifetimes(kind, 1, 1200)
    bound = lower_bound(buffers)
    instance = Instance.of(buffers, 1)
    first = instance.height(fit(instance, size_order(instance))) - bound
    made = plan(buffers, steps=12, seconds=60)
    assert not violations(buffers, made.offsets)
    assert made.height - bound <= first // 2


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_lifetimes_repeat(kind):
    """A table is made by its seed, of about as many buffers as were asked for."""
    buffers = make_lifetimes(kind, 3, 900)
    assert buffers == make_lifetimes(kind, 3, 900)
    assert buffers != make_lifetimes(kind, 4, 900)
    assert 600 < len(buffers) < 1200


@pytest.mark.parametrize("kind", sorted(PERFECT))
def test_perfect_lifetimes_leave_no_gap(kind):
    """As much is in use at all times, so a plan at the bound would be full."""
    buffers = make_lifetimes(kind, 2, 700)
    length = max(b.upper for b in buffers) - min(b.lower for b in buffers)
    area = sum((b.upper - b.lower) * b.size for b in buffers)
    assert area == length * lower_bound(buffers)
