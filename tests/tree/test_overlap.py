"""Places that may be anywhere share bytes with nothing, or are said to."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from sapwood.tree.choose.admit import overlap

_PLACES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12), st.booleans(), st.booleans()),
    max_size=6,
)


def _node(places, *, watches=True):
    uses = [
        SimpleNamespace(size=size, used=used, role=SimpleNamespace(fixed=fixed))
        for _, size, used, fixed in places
    ]
    return SimpleNamespace(places=uses, watches_overlap=watches)


@given(places=_PLACES)
def test_they_overlap_where_two_meet_of_which_one_moves(places):
    """As by comparing all that is used and holds bytes, one by one."""
    used = [
        (low, low + size, fixed) for low, size, used, fixed in places if used * size
    ]
    meet = any(
        a[0] < b[1] and b[0] < a[1] and not (a[2] and b[2])
        for a, b in combinations(used, 2)
    )
    lows = [low for low, *_ in places]
    assert overlap(_node(places), lows) == meet
    assert not overlap(_node(places, watches=False), lows)
