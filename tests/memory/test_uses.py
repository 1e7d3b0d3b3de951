"""Which streams use which free bytes: what holds of an interval holds of its parts."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sapwood.memory.heap import Uses
from tests.support.interrupts import interrupted

SIZE = 24
STREAMS = "abc"  # anything that can be told apart

STEPS = st.lists(
    st.tuples(
        st.integers(0, SIZE - 1),
        st.integers(1, SIZE),
        st.frozensets(st.sampled_from(STREAMS)),
        st.booleans(),
    ),
    max_size=30,
)


@given(STEPS)
def test_each_byte_keeps_its_streams(steps):
    """Taking returns exactly what was said of the bytes taken, once."""
    uses, bytes_ = Uses(), [frozenset()] * SIZE
    for start, size, streams, adds in steps:
        end = min(start + size, SIZE)
        known = frozenset().union(*bytes_[start:end])
        assert set(uses.take(start, end)) == known
        bytes_[start:end] = [streams if adds else frozenset()] * (end - start)
        if adds:
            uses.add(start, end, streams)
        assert set(uses.streams()) == frozenset().union(*bytes_)
    for place, known in enumerate(bytes_):
        assert set(uses.take(place, place + 1)) == known
    assert not uses.streams()


def test_clearing_forgets_everything():
    """After everybody was waited for, nobody uses anything."""
    uses = Uses()
    uses.add(0, 512, frozenset("ab"))
    uses.clear()
    assert not uses.take(0, 512)
    assert not uses.streams()


def test_an_interrupted_take_forgets_nothing():
    """Wherever Control-C comes in it, all bytes are used as they were before."""
    for at in itertools.count(1):
        uses = Uses()
        for start, streams in (0, "a"), (8, "b"), (16, "c"):
            uses.add(start, start + 8, frozenset(streams))
        if interrupted(lambda: uses.take(4, 20), at) is None:  # noqa: B023
            break
        assert [*map(set, map(uses.take, range(24), range(1, 25)))] == [
            {name} for name in "abc" for _ in range(8)
        ]
    assert at > 3
