"""Every policy on public traces and on programs of several kinds.

Figures are reserved memory to the most that is alive at once; goals are what the
better of the two models of PyTorch's allocator reaches. Then the time of replaying a
long trace. ``python benchmarks/simulate.py [TRACE...]`` prints a table for the docs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from sapwood.allocator.simulate import (
    POLICIES,
    Outcome,
    Trace,
    compare,
    read_trace,
    simulate,
)
from sapwood.testing.traces import FAMILIES, make_trace

PUBLIC = Path(__file__).resolve().parent.parent / "tests/allocator/simulate/traces"
PEERS = ("classic", "expandable")
BUFFERS = 3_000
LONG = 60_000

GOALS: dict[str, float] = {}


def measure() -> dict[str, float]:
    """Return ratios by trace, and seconds by policy."""
    figures = {}
    for trace in _traces():
        ours, *peers = compare(trace, ("default", *PEERS))
        name = f"{trace.name}, reserved to peak"
        figures[name] = _ratio(ours)
        GOALS[name] = min(map(_ratio, peers))
    long = make_trace("churn", 0, LONG)
    for policy in POLICIES:
        name = f"{LONG:,} buffers on {policy}, s"
        figures[name] = simulate(long, policy).seconds
        GOALS[name] = 10.0
    return figures


def table(traces: Iterable[Trace]) -> Iterator[str]:
    """Yield the lines of a Markdown table of all policies."""
    yield f"| trace | {' | '.join(POLICIES)} |"
    yield f"|---|{'---:|' * len(POLICIES)}"
    for trace in traces:
        ratios = (f"{_ratio(outcome):.3f}" for outcome in compare(trace, POLICIES))
        yield f"| {trace.name} | {' | '.join(ratios)} |"


def _ratio(outcome: Outcome) -> float:
    if outcome.ratio is None:
        raise LookupError(f"{outcome.policy} ran out of memory on {outcome.trace}")
    return outcome.ratio


def _traces() -> list[Trace]:
    public = [read_trace(path) for path in sorted(PUBLIC.glob("*.csv"))]
    return public + [make_trace(family, 0, BUFFERS) for family in FAMILIES]


if __name__ == "__main__":
    given = [read_trace(path) for path in sys.argv[1:]]
    for line in table(given or _traces()):
        print(line)
