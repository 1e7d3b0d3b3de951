"""A layout keeps what lives together apart, and is hardly higher than it must be."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.allocator.caching.settings import DEFAULT
from sapwood.allocator.simulate import Buffer, Trace, read_trace, simulate
from sapwood.allocator.simulate.models.planned import Planned

rows = st.lists(
    st.tuples(st.integers(-20, 20), st.integers(1, 20), st.integers(1, 100)),
    max_size=30,
)


def _placed(buffers: list[Buffer]) -> tuple[list[tuple[Buffer, int]], int]:
    """Return each buffer with its offset, and the height of the layout."""
    trace = Trace.of("drawn", buffers)
    planned = Planned(trace, DEFAULT, 1 << 90)
    served = [buffers[step] for step in trace.steps if step >= 0]
    placed = [(buffer, planned.allocate(buffer.size, 0)) for buffer in served]
    return placed, planned.reserved


@given(rows, st.sampled_from([512, 1 << 70]))
def test_what_lives_together_lies_apart(drawn, unit):
    """No two buffers share a byte and a time; the height is the end of the last."""
    buffers = [
        Buffer(str(number), lower, lower + length, size * unit)
        for number, (lower, length, size) in enumerate(drawn)
    ]
    placed, height = _placed(buffers)
    for (a, at), (b, bt) in combinations(placed, 2):
        together = a.lower < b.upper and b.lower < a.upper
        assert not together or at + a.size <= bt or bt + b.size <= at
    assert height == max((at + b.size for b, at in placed), default=0)
    assert height >= Trace.of("drawn", buffers).peak


@pytest.mark.parametrize(("name", "ratio"), [("resnet50", 1.0), ("G_1", 1.0)])
def test_known_figures_come_out(name, ratio):
    """Public traces are laid out as `sapwood plan` does it."""
    trace = read_trace(Path(__file__).parent / "traces" / f"{name}.csv")
    assert round(simulate(trace, "planned").ratio, 3) == ratio


def test_what_never_meets_shares_its_place():
    """Buffers one after another lie on top of each other."""
    buffers = [Buffer(str(n), n, n + 1, 100) for n in range(5)]
    assert _placed(buffers)[1] == 512
