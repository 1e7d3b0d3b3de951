"""Indexing reads and writes what NumPy's does."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

BASIC = (
    *(0, -1, ..., None, (), slice(None, None, -1), slice(1, 3), slice(9, None)),
    *((0, 1), (0, 1, 2), (..., 0), (None, slice(1), ...), (slice(None), -1)),
    *((np.int64(1), slice(None, None, 2)), 7, (0, 0, 0, 0)),
)
ADVANCED = (
    *([0, 2], [[0], [1]], ([0, 1], [1, 2]), (slice(None), [2, 0]), ([0, 1], ..., 1)),
    *((0, slice(None), [1, 1]), (None, [0, -1]), ([0], None, [1, 2]), [], [True] * 3),
    *((slice(1), [True, False, True]), [5], ([0, 1], [0, 1, 2]), True, False),
)


@pytest.mark.parametrize("layout", ["c", "f", "strided", "broadcast", "unaligned"])
def test_reading_equals_numpy(lab, layout):
    """Indices of every kind give NumPy's elements, shapes, strides and errors."""
    pair = lab.pair("d", (3, 3, 4), layout)
    for index in (*BASIC, *ADVANCED):
        lab.agree(operator.itemgetter(index), pair, what=index)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(index=arrays.basic_indices((3, 4, 2), allow_newaxis=True))
def test_basic_indices_are_views(lab, index):
    """A basic index is a view of the same storage, even of one element."""
    host, x = lab.pair("f", (3, 4, 2), "f")
    lab.same(x[index], host[index])
    assert x[index].storage is x.storage


def test_indices_on_the_device(lab):
    """Arrays of integers and bools may be on the device."""
    x = lab.pair("d", (4, 3), "f")
    for kind in "bBil":
        index = tuple(np.remainder(i, 4) for i in lab.pair(kind, (2, 3)))
        lab.agree(lambda a, i: a[i], x, index)
        lab.agree(lambda a, i: a[i, 1], x, index)
        lab.agree(lambda a, i: a[i[0, 0] : 1, None], x, index)
        lab.agree(lambda a, i: np.take(a, i, 0), x, index)
    place = tuple(np.argsort(a, axis=0) for a in x)
    lab.agree(lambda a, i: np.take_along_axis(a, i, 0), x, place)
    lab.agree(lambda a, i: a[i[0, 0]].copy(), x, place)
    lab.agree(lambda a: a[a > 0], x)
    lab.agree(lambda a: a[a[:, 0] > 0, 1:], x)
    with pytest.raises(IndexError, match="integer or bool dtype, not float64"):
        x[1][x[1]]


def _set(index, value):
    def run(x, *operands):
        copy = x.copy("K")
        given = operands[0] if operands else value
        copy[index(*operands[1:]) if callable(index) else index] = given
        return copy

    return run


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(index=st.sampled_from((*BASIC, *ADVANCED)), data=st.data())
def test_writing_equals_numpy(lab, index, data):
    """Assignment casts and broadcasts numbers, lists and arrays as NumPy does."""
    kind = data.draw(st.sampled_from("?bHlefD"))
    x = lab.pair(kind, (3, 3, 4), data.draw(st.sampled_from(["c", "f"])))
    # A list put into one bool of NumPy's is asked whether it is empty.
    numbers = [1, 2, 3, 4] if kind != "?" else 0
    for value in (1, 2.5, np.float32(3), numbers, np.int8(-1), True):
        lab.agree(_set(index, value), x, what=(index, value))
    source = data.draw(st.sampled_from("?bld"))
    for shape in ((), (4,), (3, 1), (1, 1, 1, 4), (5,)):
        lab.agree(_set(index, None), x, lab.pair(source, shape), what=(index, shape))


def test_writing_by_masks_and_device_indices(lab):
    """Masks and indices on the device stay there when written through."""
    x = lab.pair("d", (4, 3))
    mask = lab.pair("?", (4, 3), seed=3)
    rows = tuple(np.remainder(i, 4) for i in lab.pair("l", (2,)))
    number = lab.pair("d", (), seed=2)
    lab.agree(lambda a, m: _set(m, 0.5)(a), x, mask)
    lab.agree(lambda a, m, v: _set(m, v)(a), x, mask, number)
    lab.agree(lambda a, i, v: _set(i, v)(a), x, rows, lab.pair("f", (2, 3)))
    lab.agree(lambda a, i: _set((i, 0), 9)(a), x, rows)
    place = tuple(np.argsort(a, axis=0)[:1] for a in x)

    def put(a, i):
        copy = a.copy()
        np.put_along_axis(copy, i, 7.0, 0)
        return copy

    lab.agree(put, x, place)


def test_host_arrays_are_assigned(lab):
    """``x[...] = host`` uploads, broadcasts and casts."""
    host, x = lab.pair("f", (3, 4))
    given = np.arange(4)[::-1]
    x[1:] = host[1:] = given
    lab.same(x, host)
    np.copyto(x, x[::-1])
    np.copyto(host, host[::-1])
    lab.same(x, host)
    with pytest.raises(TypeError, match="same_kind"):
        np.copyto(x.astype(int), 1.5)


def test_overlapping_assignment(lab):
    """Writing a view of an array into another view of it copies first."""
    for first, second in ((slice(1, None), slice(-1)), (slice(-1), slice(1, None))):
        host, x = lab.pair("d", (6, 2))
        host[first], x[first] = host[second], x[second]
        lab.same(x, host)
    host, x = lab.pair("d", (4, 4))
    host[...], x[...] = host.T, x.T
    lab.same(x, host)


def test_nonsense_is_no_index(lab):
    """What is no index says so."""
    _, x = lab.pair()
    for index in ("a", 1.5, [0.5], {}):
        with pytest.raises(IndexError, match="is not an index of sapwood arrays"):
            x[index]
