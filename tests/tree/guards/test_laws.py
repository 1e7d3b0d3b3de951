"""Guards agree with the signature about what is the same, for any nest of values."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from sapwood.tree.guards import survey
from sapwood.tree.nests.containers import constant_key, flatten

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 1),
    st.sampled_from([0.0, -0.0, 1.0, float("nan")]),
    st.text("ab", max_size=1),
)
NESTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text("ab", max_size=2) | st.booleans(), inner, max_size=3),
    ),
    max_leaves=8,
)


class NoArrays:
    def surroundings(self):
        return ()

    def is_array(self, _):
        return False

    def look(self, array):
        raise AssertionError(array)


def _key(nest):
    leaves, structure = flatten(nest, lambda _: False)
    return structure, tuple(map(constant_key, leaves))


def _over(nest):
    def fn():
        return nest

    def put(value):
        nonlocal nest
        nest = value

    return fn, put


@given(NESTS, NESTS)
def test_another_nest_is_a_miss_if_it_differs(a, b):
    """A closed-over nest may be replaced by one that is the same in type and bits."""
    fn, put = _over(a)
    first = survey(fn, {}, NoArrays())
    ambient = first.guards(bool)
    put(b)
    assert ambient.holds() == (_key(a) == _key(b))
    assert (ambient.miss() is None) == ambient.holds()
    second = survey(fn, {}, NoArrays())
    assert (first.key == second.key) == ambient.holds()
    assert (ambient == second.guards(bool)) == ambient.holds()


@given(NESTS)
def test_a_copy_is_the_same(nest):
    """A deep copy of a nest is never a miss."""
    fn, put = _over(nest)
    ambient = survey(fn, {}, NoArrays()).guards(bool)
    put(copy.deepcopy(nest))
    assert ambient.holds()


@given(NESTS, st.data())
def test_one_write_inside_is_noticed(nest, data):
    """A write anywhere in a nest is a change, and a miss, unless it writes the same."""
    fn, _ = _over(nest)
    before = survey(fn, {}, NoArrays())
    ambient, then = before.guards(bool), _key(nest)
    containers = [c for c in _mutables(nest) if len(c)]
    if not containers:
        return
    container = data.draw(st.sampled_from(containers))
    keys = list(container) if isinstance(container, dict) else range(len(container))
    container[data.draw(st.sampled_from(list(keys)))] = data.draw(LEAVES)
    changed = _key(nest) != then
    assert ambient.holds() != changed
    assert bool(survey(fn, {}, NoArrays()).changes_since(before)) == changed


def _mutables(nest):
    if isinstance(nest, list | dict):
        yield nest
    if isinstance(nest, list | tuple | dict):
        for child in nest.values() if isinstance(nest, dict) else nest:
            yield from _mutables(child)
