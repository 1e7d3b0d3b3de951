"""What `scripts/bench` runs when it is given no names."""

from __future__ import annotations

import inspect


def test_all_benchmarks_can_be_run_without_arguments(benchmark_of):
    """Each gives figures, and says how much some of them should be at the most."""
    for name in benchmark_of("run").ALL:
        module = benchmark_of(name)
        assert not inspect.signature(module.measure).parameters
        assert isinstance(module.GOALS, dict)
