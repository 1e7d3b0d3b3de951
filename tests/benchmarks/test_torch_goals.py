"""What figures of torch's functions are to reach."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.fixture
def goals(benchmark_of):
    return benchmark_of("torch_goals")


def figures(mib, *ms, **also):
    return {"mib": mib, "ms": list(ms), **also}


def test_the_trees_are_compared_with_the_same_kernels(goals):
    """In all, with those that torch has compiled; what a call costs, with any."""
    times = {"host": 5.0, "total": 50.0}
    columns = {
        "trees": {"host": 6.0, "total": 30.0},
        "same inputs": times,
        "on compiled": {"host": 7.0, "total": 29.0},
    }
    found = {"calls": 1, "pinned": 0, "columns": columns}
    assert [tuple(goal) for goal in goals.goals_of("decoder", found)] == [
        ("same inputs: host, trees", 5.0, 6.0),
        ("on compiled: host, trees", 7.0, 6.0),
        ("on compiled: total, trees", 29.0, 30.0),
    ]


def test_a_recording_takes_half_of_what_the_trees_take(goals):
    """The median is compared with the trees' in the same order."""
    memory = {
        "sapwood": {
            "large first": figures(294.0, 3, 1, 2),
            "small first": figures(1, 2),
        },
        "sapwood on compiled": {"large first": figures(301.0, 9)},
        "trees": {"large first": figures(500, 4, 10, 5), "small first": figures(1, 8)},
    }
    found = [tuple(goal) for goal in goals.memory_goals(memory)]
    assert found == [
        ("sapwood, large first: MiB", 294.0, 300.0),
        ("sapwood, large first: ms, trees / 2", 2, 2.5),
        ("sapwood, small first: MiB", 1, 300.0),
        ("sapwood, small first: ms, trees / 2", 2, 4),
        ("sapwood on compiled, large first: MiB", 301.0, 300.0),
        ("sapwood on compiled, large first: ms, trees / 2", 9, 2.5),
    ]


def test_without_trees_the_time_is_fixed(goals):
    """What was skipped is nothing to compare with, and has no goals of its own."""
    memory = {
        "sapwood": {"large first": figures(294.0, 3), "small first": {"says": "late"}},
        "trees": {"large first": {"says": "skipped"}},
    }
    assert [tuple(goal) for goal in goals.memory_goals(memory)][1:] == [
        ("sapwood, large first: ms", 3, 2.75)
    ]


def test_results_that_differ_are_a_goal_missed(goals):
    """Of whatever kind: figures of wrong results mean nothing."""
    memory = {"by hand": {"large first": figures(1.0, 1, differ=[8, 2])}}
    (goal,) = goals.memory_goals(memory)
    assert goal.found == 2 > goal.most
    assert str(goal).endswith("MISSED")


def test_figures_that_are_kept_have_goals(goals):
    """Each row of the kept figures is compared with something."""
    kept = json.loads((RESULTS / "torch.json").read_text())
    for row, found in kept["rows"].items():
        assert [str(goal) for goal in goals.goals_of(row, found)]
