"""Heights of plans, and the time until then, on hard, public and long traces.

Hard instances are measured to their capacity, the others to their lower bound.
"""

from __future__ import annotations

from pathlib import Path

from sapwood.allocator.planner import Buffer, largest_first, lower_bound, plan
from sapwood.allocator.simulate import Trace, read_trace
from sapwood.testing.lifetimes import KINDS, make_lifetimes
from sapwood.testing.traces import FAMILIES, make_trace

TESTS = Path(__file__).resolve().parent.parent / "tests/memory"
HARD = ("mm_A", "mm_B", "mm_C", "mm_D", "mm_E")
EASY = ("resnet50", "G_1")
CAPACITY = 1_048_576
LONG = (20_000, 60_000)

GOALS: dict[str, float] = {}


def measure() -> dict[str, float]:
    """Return ratios and seconds by trace."""
    figures: dict[str, float] = {}
    for name in HARD:
        trace = read_trace(TESTS / "planner/traces" / f"{name}.csv")
        figures |= _figures(name, _buffers(trace), CAPACITY, 1.0, 60.0)
    for name in EASY:
        trace = read_trace(TESTS / "simulate/traces" / f"{name}.csv")
        figures |= _figures(name, _buffers(trace), None, 1.02, 10.0)
    for count in LONG:
        for family in FAMILIES:
            buffers = _buffers(make_trace(family, 0, count))
            figures |= _figures(family, buffers, None, 1.02, 60.0)
        for kind in KINDS:
            buffers = make_lifetimes(kind, 0, count)
            figures |= _figures(kind, buffers, None, 1.02, 60.0)
    return figures


def _buffers(trace: Trace) -> tuple[Buffer, ...]:
    return tuple(Buffer(b.lower, b.upper, b.size) for b in trace.buffers)


def _figures(
    name: str,
    buffers: tuple[Buffer, ...],
    capacity: int | None,
    ratio: float,
    seconds: float,
) -> dict[str, float]:
    name = f"{name}, {len(buffers):,} buffers"
    least = capacity or lower_bound(buffers)
    offsets = largest_first(buffers)
    ends = (at + b.size for at, b in zip(offsets, buffers, strict=True))
    made = plan(buffers, capacity=capacity)
    GOALS[f"{name}, height"] = ratio
    GOALS[f"{name}, s"] = seconds
    return {
        f"{name}, largest first": max(ends) / least,
        f"{name}, height": made.height / least,
        f"{name}, s": made.seconds,
    }
