"""A plan keeps what is in use at once apart, and never gets worse by searching."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.allocator.planner import (
    Buffer,
    largest_first,
    lower_bound,
    plan,
    violations,
)
from sapwood.allocator.simulate import read_trace
from sapwood.errors import MisuseError

HARD = Path(__file__).parent / "traces"
EASY = Path(__file__).parents[1] / "simulate" / "traces"
CAPACITY = 1_048_576
STEPS = 40


def _buffers(rows, unit=1):
    return [Buffer(lower, lower + span, size * unit) for lower, span, size in rows]


def _read(path):
    return [Buffer(b.lower, b.upper, b.size) for b in read_trace(path).buffers]


def _sound(buffers, offsets, alignment=1):
    """Look at every pair, which no code under test does."""
    placed = [(b, at) for b, at in zip(buffers, offsets, strict=True) if b.size]
    apart = all(
        a.upper <= b.lower
        or b.upper <= a.lower
        or at + a.size <= bt
        or bt + b.size <= at
        for (a, at), (b, bt) in combinations(placed, 2)
    )
    return apart and all(at >= 0 and at % alignment == 0 for _, at in placed)


def _height(buffers, offsets):
    ends = (at + b.size for b, at in zip(buffers, offsets, strict=True) if b.size)
    return max(ends, default=0)


def _peak(buffers):
    alive = (
        sum(b.size for b in buffers if b.lower <= a.lower < b.upper) for a in buffers
    )
    return max(alive, default=0)


rows = st.lists(
    st.tuples(st.integers(-20, 20), st.integers(1, 20), st.integers(0, 100)),
    max_size=30,
)
units = st.sampled_from([1, 3, 1 << 30, 1 << 70])
alignments = st.sampled_from([1, 2, 7, 512])


@given(rows, units, alignments)
def test_a_plan_is_sound(drawn, unit, alignment):
    """No two share a byte and a time; figures are what they say."""
    buffers = _buffers(drawn, unit)
    made = plan(buffers, steps=STEPS, alignment=alignment)
    assert _sound(buffers, made.offsets, alignment)
    assert made.height == _height(buffers, made.offsets) >= made.lower_bound
    assert made.solved == (made.height == made.lower_bound)
    assert made.ratio >= 1.0


@given(rows, units, alignments)
def test_searching_never_makes_it_worse(drawn, unit, alignment):
    """More steps give no higher plan, and none gives that of the largest first."""
    buffers = _buffers(drawn, unit)
    heights = [
        plan(buffers, steps=steps, alignment=alignment).height for steps in (0, 5, 30)
    ]
    assert heights == sorted(heights, reverse=True)
    first = largest_first(buffers, alignment)
    assert _sound(buffers, first, alignment)
    assert heights[0] == _height(buffers, first)


@given(rows, units)
def test_the_bound_is_the_most_in_use_at_once(drawn, unit):
    """Unaligned, the bound is the sum over those in use when one begins."""
    buffers = _buffers(drawn, unit)
    assert lower_bound(buffers) == _peak(buffers)


@given(rows, alignments)
def test_the_bound_counts_alignment(drawn, alignment):
    """Alignment raises the bound, by less than its rounding of all sizes."""
    buffers = _buffers(drawn)
    rounded = [b._replace(size=-(-b.size // alignment) * alignment) for b in buffers]
    bound = lower_bound(buffers, alignment)
    assert lower_bound(buffers) <= bound <= lower_bound(rounded)
    assert bound > lower_bound(rounded) - alignment


@given(rows, st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(drawn, random):
    """Shuffled buffers get the same plan, shuffled."""
    buffers = _buffers(drawn)
    shuffled = random.sample(buffers, len(buffers))
    made, other = (plan(each, steps=STEPS) for each in (buffers, shuffled))
    assert made.height == other.height
    assert sorted(zip(buffers, made.offsets, strict=True)) == sorted(
        zip(shuffled, other.offsets, strict=True)
    )


@given(rows, st.integers(-5, 5), st.integers(0, 99))
def test_solved_is_within_the_capacity(drawn, more, seed):
    """With a capacity that alone counts; what is enough ends the search."""
    buffers = _buffers(drawn)
    capacity = max(lower_bound(buffers) + more, 0)
    made = plan(buffers, capacity=capacity, steps=STEPS, seed=seed)
    assert made.solved == (made.height <= capacity)
    assert _sound(buffers, made.offsets)


@pytest.mark.parametrize("seed", [0, 1])
def test_steps_repeat_exactly(seed):
    """The same steps from the same seed give the same offsets."""
    buffers = _read(HARD / "mm_A.csv")
    once, again = (plan(buffers, steps=30, seed=seed) for _ in range(2))
    assert once == again


@pytest.mark.parametrize("name", ["mm_A", "mm_B", "mm_C", "mm_D", "mm_E"])
@pytest.mark.deep
def test_hard_instances_come_close(name):
    """A short search gets within a tenth of the capacity, where greed is at 1.3."""
    buffers = _read(HARD / f"{name}.csv")
    made = plan(buffers, capacity=CAPACITY * 11 // 10, seconds=60)
    assert made.solved
    assert not violations(buffers, made.offsets)
    assert _height(buffers, largest_first(buffers)) > 1.25 * CAPACITY


@pytest.mark.parametrize("name", ["resnet50", "G_1"])
def test_training_steps_are_solved(name):
    """Public training steps reach the lower bound."""
    made = plan(_read(EASY / f"{name}.csv"), seconds=30)
    assert made.solved
    assert made.ratio == 1.0


@pytest.mark.parametrize(
    ("buffers", "changes", "what"),
    [
        ([(0, 0, 1)], {}, r"buffer 0 is alive in \[0, 0\), which is empty"),
        ([(0, 1, 1), (0, 1, -1)], {}, "buffer 1 has -1 bytes"),
        ([], {"alignment": 0}, "alignment is 0"),
        ([], {"capacity": -1}, "capacity is -1"),
        ([], {"seconds": float("nan")}, "seconds is nan"),
        ([], {"steps": -1}, "steps is -1"),
    ],
)
def test_what_cannot_be_is_refused(buffers, changes, what):
    """Impossible arguments are named, with what to give."""
    with pytest.raises(MisuseError, match=f"{what}.*Give"):
        plan([Buffer(*row) for row in buffers], **changes)


def test_a_search_ends_when_it_is_told_to():
    """With the best height that was told; what is asked comes again and again."""
    buffers, heights = _read(HARD / "mm_A.csv"), []

    def goes_on(best):
        heights.append(best)
        return len(heights) < 50

    made = plan(buffers, seconds=600, goes_on=goes_on)
    assert len(heights) >= 50
    assert made.height == min(heights)
    assert not violations(buffers, made.offsets)


MANY = [Buffer(at, at + 40, 1 + at * 37 % 101) for at in range(2_000)]


def test_no_plan_within_the_time_is_an_error():
    """Of many buffers; few are packed at once, and without a limit all are packed."""
    with pytest.raises(TimeoutError, match="1,024 of 2,000 buffers are placed"):
        plan(MANY, seconds=0)
    assert not violations(MANY[:1_000], plan(MANY[:1_000], seconds=0).offsets)
    assert not violations(MANY, plan(MANY, steps=0).offsets)


def test_the_first_packing_ends_when_it_is_told_to():
    """It asks, too, though there is no height to tell."""
    asked = []
    with pytest.raises(TimeoutError, match="no plan yet"):
        plan(MANY, goes_on=asked.append)
    assert asked == [None]
