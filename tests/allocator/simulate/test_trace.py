"""A trace is what its buffers say, in the only order that they allow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.allocator.simulate import Buffer, Trace
from sapwood.errors import MisuseError
from sapwood.testing.traces import FAMILIES, make_trace

rows = st.lists(
    st.tuples(st.integers(-20, 20), st.integers(1, 20), st.integers(0, 100)),
    max_size=30,
)


def _trace(drawn) -> Trace:
    return Trace.of(
        "drawn",
        [
            Buffer(str(number), lower, lower + length, size)
            for number, (lower, length, size) in enumerate(drawn)
        ],
    )


@given(rows)
def test_the_peak_is_the_most_alive_at_any_time(drawn):
    """The steps' peak is that of counting, at each time, who is alive in it."""
    trace = _trace(drawn)
    assert trace.peak == max(
        (
            sum(b.size for b in trace.buffers if b.lower <= time < b.upper)
            for time in range(-20, 41)
        ),
        default=0,
    )


@given(rows)
def test_steps_follow_time_and_frees_come_first(drawn):
    """Each buffer with bytes comes and goes once, in time, frees before the rest."""
    trace = _trace(drawn)
    served = sorted(step for step in trace.steps if step >= 0)
    assert served == [n for n, buffer in enumerate(trace.buffers) if buffer.size]
    assert sorted(~step for step in trace.steps if step < 0) == served
    keys = [
        (trace.buffers[step].lower, 1, step)
        if step >= 0
        else (trace.buffers[~step].upper, 0, ~step)
        for step in trace.steps
    ]
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("buffer", "said"),
    [
        (Buffer("a", 4, 4, 1), r"buffer a is alive in \[4, 4\)"),
        (Buffer("b", 4, 3, 1), "buffer b is alive"),
        (Buffer("c", 0, 1, -1), "buffer c has -1 bytes"),
    ],
)
def test_what_cannot_be_is_refused(buffer, said):
    """An empty life and less than no bytes are named."""
    with pytest.raises(MisuseError, match=said):
        Trace.of("wrong", [buffer])


@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_the_same_every_time(family):
    """A family's trace depends on its seed and its number of buffers alone."""
    trace = make_trace(family, 3, 400)
    assert trace == make_trace(family, 3, 400)
    assert trace != make_trace(family, 4, 400)
    assert 200 <= len(trace.buffers) <= 800
