"""Arguments at other addresses share bytes with nothing, or are said to."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from sapwood.tree.node.spans import Spans

_PLACES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=5)


@given(arguments=_PLACES, others=_PLACES)
def test_they_are_apart_where_no_two_meet(arguments, others):
    """As by comparing each argument that is used with everything, one by one."""
    found = sorted((low, low + length) for low, length in others)
    ends = [max(end for _, end in found[: n + 1]) for n in range(len(found))]
    spans = Spans([length for _, length in arguments], [a for a, _ in found], ends)
    used = [(low, low + length) for low, length in arguments if length]
    pairs = [*combinations(used, 2), *((a, b) for a in used for b in found)]
    meet = any(a[0] < b[1] and b[0] < a[1] for a, b in pairs)
    # An empty span inside another may count as meeting it, never the other way round.
    apart = spans.are_apart([low for low, _ in arguments])
    if all(low < end for low, end in found):
        assert apart == (not meet)
    else:
        assert not (apart and meet)
