"""A memo knows what `describe` would say, or says nothing."""

from __future__ import annotations

import dataclasses
import gc
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sapwood as sw
from sapwood.tree.call.signature import describe
from sapwood.tree.replay.last_call import LastCall


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Box:
    a: Any
    b: Any


@pytest.fixture(scope="module")
def rt():
    with sw.Runtime("emulated") as rt:
        yield rt


def _last_call(rt, *args, **kwargs):
    return LastCall.of(
        describe(args, kwargs, rt._recordings.integration), rt._recordings.integration
    )


def _nests(leaf):
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.dictionaries(st.sampled_from([1, "a"]), inner, max_size=2),
            st.dictionaries(st.sampled_from("ab"), inner, max_size=2).map(OrderedDict),
            st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
            st.tuples(inner, inner).map(lambda pair: Box(*pair)),
        ),
        max_leaves=6,
    )


_LEAVES = st.sampled_from(["x", "y", "z", 1, 1.0, True, None, "text"])


@given(_nests(_LEAVES), _nests(_LEAVES), st.booleans())
def test_what_is_recognised_is_what_describe_says(rt, one, other, again):
    """Never another key, place or leaf, whatever call comes after whatever call."""
    arrays = {name: rt.array(np.full(3, i)) for i, name in enumerate("xyz")}
    fresh = {name: rt.array(np.full(3, i)) for i, name in enumerate("xyz")}

    def filled(nest, arrays):
        match nest:
            case Pair(a, b):
                return Pair(filled(a, arrays), filled(b, arrays))
            case Box(a, b):
                return Box(filled(a, arrays), filled(b, arrays))
            case dict():
                return type(nest)((k, filled(v, arrays)) for k, v in nest.items())
            case list() | tuple():
                return type(nest)(filled(v, arrays) for v in nest)
            case _:
                return arrays.get(nest, nest) if isinstance(nest, str) else nest

    last_call = _last_call(rt, filled(one, arrays))
    args = (filled(one if again else other, fresh if again else arrays),)
    found = last_call and last_call.recognise(args, {})
    if found is not None:
        told = describe(args, {}, rt._recordings.integration)
        assert found.key == told.key
        assert found.positions == told.positions
        assert all(a is b for a, b in zip(found.leaves, told.leaves, strict=True))
        assert found.given.lows == told.given.lows
        assert found.given.storages == told.given.storages
        assert found.given.sharing == told.given.sharing


def test_the_same_call_is_recognised(rt):
    """Also with other arrays that look the same, and in another dict."""
    x, y = rt.array(np.ones(3)), rt.array(np.zeros((2, 2)))
    last_call = _last_call(rt, {"a": x}, y, 2, flag=True)
    assert last_call.recognise(({"a": x}, y, 2), {"flag": True}) is not None
    z = rt.array(np.ones(3))
    found = last_call.recognise(({"a": z}, y, 2), {"flag": True})
    assert found.given.arrays[0] is z
    assert found.given.lows[0] == rt._recordings.integration.look(z).span[0]


_CHANGES = {
    "value": lambda x, y: (({"a": x}, y, 3), {}),
    "type": lambda x, y: (({"a": x}, y, True), {}),
    "key": lambda x, y: (({"b": x}, y, 2), {}),
    "length": lambda x, y: (({"a": x, "b": y}, y, 2), {}),
    "container": lambda x, y: (([x], y, 2), {}),
    "strides": lambda x, y: (({"a": x}, y.T, 2), {}),
    "shape": lambda x, y: (({"a": x}, y[:1], 2), {}),
    "dtype": lambda x, y: (({"a": x}, y.astype(np.float32), 2), {}),
    "nest": lambda x, y: (({"a": x}, [y], 2), {}),
    "storage": lambda _, y: (({"a": y[0]}, y, 2), {}),
    "keyword": lambda x, y: (({"a": x}, y), {"n": 2}),
    "no array": lambda x, _: (({"a": x}, None, 2), {}),
}


@pytest.mark.parametrize("change", _CHANGES)
def test_another_call_is_not(rt, change):
    """Values, structure, layout, dtype, shared storages: any difference is noticed."""
    x, y = rt.array(np.ones(2)), rt.array(np.zeros((2, 3)))
    last_call = _last_call(rt, {"a": x}, y, 2)
    args, kwargs = _CHANGES[change](x, y)
    assert last_call.recognise(args, kwargs) is None


def test_nothing_is_kept_alive(rt):
    """A memo holds its arrays weakly, and opaque values not at all."""
    before = rt.memory_stats()["heap.bytes"]
    last_call = _last_call(rt, rt.array(np.ones(1 << 12)))
    gc.collect()
    assert rt.memory_stats()["heap.bytes"] == before
    assert last_call.recognise((rt.array(np.ones(1 << 12)),), {}) is not None
    assert _last_call(rt, object()) is None


def test_arrays_that_share_are_told_by_where_they_lie(rt):
    """Which arrays overlap is part of the key, and so is which are one."""
    x, y = rt.array(np.ones(4)), rt.array(np.ones(4))
    assert _last_call(rt, x, y).recognise((x, x), {}) is None
    for a, b in ((slice(3), slice(1, None)), (slice(1, None), slice(3))):
        last_call = _last_call(rt, x[a], y, x[b])
        z = rt.array(np.ones(4))
        found = last_call.recognise((z[a], y, z[b]), {}).given
        look = rt._recordings.integration.look
        assert [*found.storages] == [look(z).storage, look(y).storage]
        assert [*found.lows] == [look(z).low, look(y).low]
        for others in ((z[b], y, z[a]), (x[a], y, z[b]), (x[a], y, x[a])):
            assert last_call.recognise(others, {}) is None
    last_call = _last_call(rt, x, x)
    assert last_call.recognise((y, y), {}) is not None
    assert last_call.recognise((x, y), {}) is None
    assert last_call.recognise((x, x[:]), {}) is None


def test_revoked_arrays_are_refused(rt):
    """A stale argument is an error here as it is in `describe`."""
    f = rt.graph(lambda x: x + 1)
    x = f(rt.array(np.ones(3)))
    last_call = _last_call(rt, x)
    with rt.step(), pytest.raises(sw.StaleOutput):
        last_call.recognise((x,), {})


def test_nothing_in_the_place_of_an_array_that_is_gone(rt):
    """A reference to it gives None as well."""
    f = rt.graph(lambda z=None: 0 if z is None else z * 2, fullgraph=True)
    for passed in "XX.XXX.XXX.XXXX.":
        found = f(rt.array(np.ones(2)) if passed == "X" else None)
        assert found == 0 if passed == "." else np.asarray(found).tolist() == [2.0] * 2
    assert f.stats().replays >= 6
