"""What looks plans over finds every fault, and nothing where there is none."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.allocator.planner import Buffer, largest_first, violations
from sapwood.errors import MisuseError

placed = st.lists(
    st.tuples(
        st.integers(-9, 9), st.integers(1, 6), st.integers(0, 9), st.integers(0, 30)
    ),
    max_size=12,
)


def _collide(a, at, b, bt):
    return (
        a.lower < b.upper
        and b.lower < a.upper
        and at < bt + b.size
        and bt < at + a.size
        and a.size > 0
        and b.size > 0
    )


@given(placed)
def test_faults_are_found_just_where_there_are_some(drawn):
    """Any layout: something is wrong just if a pair collides; each named pair does."""
    buffers = [Buffer(lower, lower + span, size) for lower, span, size, _ in drawn]
    offsets = [offset for *_, offset in drawn]
    pairs = {
        (i, j)
        for i, j in combinations(range(len(drawn)), 2)
        if _collide(buffers[i], offsets[i], buffers[j], offsets[j])
    }
    found = violations(buffers, offsets)
    assert bool(found) == bool(pairs)
    for each in found:
        assert tuple(sorted((each.buffer, each.other))) in pairs


@given(placed.filter(lambda rows: any(size for *_, size, _ in rows)), st.data())
def test_a_plan_that_was_tampered_with_is_caught(drawn, data):
    """One buffer on top of another that is in use with it is always found."""
    buffers = [Buffer(lower, lower + span, size) for lower, span, size, _ in drawn]
    number = data.draw(
        st.sampled_from([n for n, b in enumerate(buffers) if b.size]), label="copied"
    )
    buffers.append(buffers[number])
    offsets = list(largest_first(buffers))
    assert not violations(buffers, offsets)
    offsets[-1] = offsets[number]
    assert {number, len(drawn)} in [
        {v.buffer, v.other} for v in violations(buffers, offsets)
    ]


@pytest.mark.parametrize("offset", [-512, 100, -1])
def test_misplaced_buffers_are_named(offset):
    """Offsets below 0, or not aligned, are faults of a single buffer."""
    (found,) = violations([Buffer(0, 1, 8)], [offset], 512)
    assert (found.buffer, found.other) == (0, None)
    assert str(offset) in found.text


def test_each_buffer_has_an_offset():
    """A wrong number of offsets is refused."""
    with pytest.raises(MisuseError, match=r"2 offsets for 1 buffers\. Give one"):
        violations([Buffer(0, 1, 8)], [0, 8])
