"""Dives find plans within a capacity or nothing, and are the same every time."""

import csv
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.allocator.planner import Buffer, lower_bound, plan, violations
from sapwood.allocator.planner.instance import Instance
from sapwood.allocator.planner.orders import learners, stack
from sapwood.allocator.planner.search import Dive, Sections

TRACES = Path(__file__).parent / "traces"
CAPACITY = 1_048_576

lives = st.tuples(st.integers(0, 12), st.integers(1, 6), st.integers(1, 9))
rows = st.lists(lives, min_size=1, max_size=12)


def _buffers(drawn):
    return [Buffer(lower, lower + span, size) for lower, span, size in drawn]


def _top(instance, begins):
    return instance.height(begins) // instance.grain


def _never():
    return False


@given(rows, st.integers(0, 9), st.integers(0, 5))
def test_what_a_dive_finds_is_a_plan_within_its_capacity(drawn, more, which):
    """Offsets of a dive keep buffers apart, and end within what was asked for."""
    buffers = _buffers(drawn)
    instance = Instance.of(buffers, 1)
    ranking = learners(instance, 0)[which].ranking()
    capacity = instance.top_within(lower_bound(buffers) + more)
    found = Dive(Sections(instance), ranking, capacity).run(500, _never)
    if found is not None:
        assert _top(instance, found) <= capacity
        assert not violations(buffers, instance.offsets(found))


@given(rows, st.integers(0, 5))
def test_a_dive_finds_what_stacking_does(drawn, which):
    """Where the bottom-up packing of a ranking fits, its dive never has to go back."""
    instance = Instance.of(_buffers(drawn), 1)
    ranking = learners(instance, 0)[which].ranking()
    begins = stack(instance, ranking, _never)
    dive = Dive(Sections(instance), ranking, _top(instance, begins))
    assert (dive.run(instance.count, _never) == begins).all()
    assert not dive.blamed.any()


@given(rows, st.integers(0, 5))
def test_a_late_dive_finds_nothing(drawn, which):
    """A dive that may place too few buffers gives up."""
    instance = Instance.of(_buffers(drawn), 1)
    ranking = learners(instance, 0)[which].ranking()
    top = _top(instance, stack(instance, ranking, _never))
    assert Dive(Sections(instance), ranking, top).run(0, _never) is None


@given(rows, st.integers(0, 3))
def test_learners_rank_by_blame_first(drawn, seed):
    """Every ranking names each buffer once, those with more blame first."""
    instance = Instance.of(_buffers(drawn), 1)
    for learner in learners(instance, seed):
        assert sorted(learner.ranking()) == list(range(instance.count))
        learner.learn(np.arange(instance.count, dtype=float))
        assert [*learner.ranking()] == [*reversed(range(instance.count))]


@given(rows)
def test_company_is_who_is_beside(drawn):
    """Without blame the last learner begins with what is beside the most others."""
    instance = Instance.of(_buffers(drawn), 1)
    beside = [1] * instance.count
    for one, other in combinations(range(instance.count), 2):
        if max(instance.lower[[one, other]]) < min(instance.upper[[one, other]]):
            beside[one] += 1
            beside[other] += 1
    ranked = [beside[n] for n in learners(instance, 0)[-1].ranking()]
    assert ranked == sorted(beside, reverse=True)


@pytest.mark.parametrize("name", ["mm_A", "mm_B", "mm_C", "mm_D", "mm_E"])
@pytest.mark.deep
def test_hard_instances_are_solved(name):
    """Within few steps, so on every machine, each hard instance fits its capacity."""
    with (TRACES / f"{name}.csv").open(encoding="utf-8") as file:
        buffers = [
            Buffer(int(row["lower"]), int(row["upper"]), int(row["size"]))
            for row in csv.DictReader(file)
        ]
    made = plan(buffers, capacity=CAPACITY, steps=240, seconds=110)
    assert made.solved
    assert not violations(buffers, made.offsets)
