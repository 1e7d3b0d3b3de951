"""The last calls are remembered, in their order, in a ring that never grows."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.tree.choose.timeline import Entry, Ran, Timeline

NUMBERS = st.integers(0, (1 << 63) - 1)
ENTRIES = st.builds(
    Entry, NUMBERS, NUMBERS, st.sampled_from(Ran), NUMBERS, NUMBERS, NUMBERS
)


@given(st.integers(0, 5), st.lists(ENTRIES, max_size=14))
def test_the_last_calls_are_kept_in_order(size, entries):
    """However many there were; none where there is no room."""
    timeline = Timeline(size)
    for number, entry in enumerate(entries):
        timeline.add(*entry)
        assert len(timeline) == min(number + 1, size)
    assert list(timeline) == (entries[-size:] if size else [])


@given(st.integers(0, 5), st.lists(st.lists(ENTRIES, max_size=12), max_size=5))
def test_many_calls_are_as_if_one_by_one(size, bunches):
    """Those of one recording, all at once, wherever the ring is by then."""
    one, many = Timeline(size), Timeline(size)
    for bunch in bunches:
        for began, took, *_ in bunch:
            one.add(began, took, Ran.REPLAY, 3, 4, 0)
        many.extend([e.began for e in bunch], [e.took for e in bunch], 0, (3, 4))
        assert list(one) == list(many)
        assert len(one) == len(many)
        one.add(5, 6, Ran.RECORD, 3, 4, 1)
        many.add(5, 6, Ran.RECORD, 3, 4, 1)
    assert list(one) == list(many)


def test_writing_makes_nothing():
    """A call that is noted leaves no object behind."""
    timeline = Timeline(64)
    for _ in range(100):
        timeline.add(1, 2, Ran.REPLAY, 3, 4, 5)
    before = sys.getallocatedblocks()
    for _ in range(1000):
        timeline.add(1, 2, Ran.REPLAY, 3, 4, 5)
    assert sys.getallocatedblocks() - before < 20


@pytest.mark.parametrize(
    ("ran", "text"), [(Ran.WARM_UP, "warm-up"), (Ran.PASS_THROUGH, "pass-through")]
)
def test_people_read_how_a_call_was_run(ran, text):
    """Words, and no underscores."""
    assert ran.text == text
