"""What C sees of arrays that say by attributes where they lie, and how."""

from __future__ import annotations

import numpy as np
import pytest

from sapwood import _fast


class Memory:
    """Memory whose users are known."""


class Data:
    """Where an array begins."""

    def __init__(self, ptr, mem=None, device_id=0):
        self.ptr, self.mem, self.device_id = ptr, mem, device_id


class Strided:
    """An array that has no bytes."""

    def __init__(self, shape=(2, 3), dtype="f4", ptr=1 << 20, device_id=0):
        like = np.empty(shape, dtype)
        self.shape, self.strides, self.dtype = shape, like.strides, like.dtype
        self.data = Data(ptr, device_id=device_id)


class Other(Strided):
    """An array of another kind."""


def _with(**attributes):
    array = Strided()
    vars(array).update(attributes)
    return array


@pytest.fixture
def probe():
    """Return a maker of probes, in C."""
    native = _fast.native()
    if native is None:
        pytest.skip("the extension is not built")
    table = native.look_by_attributes(int, Memory)

    def make(*arrays):
        return native.make_probe(table, (), 0, (), bool, 512, arrays)

    return make


def test_the_same_array_is_where_it_was(probe):
    """It is told from one that looks like it."""
    array = Strided()
    found = probe(array)
    assert found([array]) is found.lows
    assert found([Strided()]) == found.lows == (1 << 20,)
    assert found([Strided()]) is not found.lows


@pytest.mark.parametrize(
    "other",
    [
        Strided((3, 2)),
        Strided((6,)),
        Strided(()),
        Strided(dtype="i4"),
        Strided(dtype="f8"),
        Strided(ptr=(1 << 20) + 256),
        Strided(device_id=1),
        Other(),
        _with(strides=(4, 8)),
        _with(strides=(12,)),
        _with(shape=[2, 3]),
        _with(shape=(2, "3")),
        _with(data=None),
        _with(shape=(1,) * 65, strides=(4,) * 65),
        3.0,
        None,
    ],
    ids=[
        *("shape", "fewer dimensions", "none", "kind", "size", "alignment", "device"),
        *("class", "strides", "fewer strides", "a list", "no number", "no data"),
        *("too many", "a number", "nothing"),
    ],
)
def test_what_looks_otherwise_is_seen(probe, other):
    """And is no error, whatever it is."""
    assert probe(Strided())([other]) is None


def test_the_same_array_may_come_to_look_otherwise(probe):
    """Its attributes can be assigned."""
    array = Strided()
    found = probe(array)
    array.shape, array.strides = (3, 2), (8, 4)
    assert found([array]) is None
    array.shape, array.strides = (2, 3), (12, 4)
    assert found([array]) is found.lows
    array.data = Data(1 << 21)
    assert found([array]) == (1 << 21,)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_as_many_arrays_are_looked_at(probe, count):
    """Each in its place."""
    arrays = [Strided((k + 1,), ptr=(k + 1) << 20) for k in range(count)]
    found = probe(*arrays)
    assert found(arrays) is found.lows
    assert found([*arrays, Strided()]) is None
    assert count < 2 or found(arrays[::-1]) is None


def test_items_of_one_kind_may_be_of_other_sizes(probe):
    """Where there are no strides, nothing else tells."""
    found = probe(Strided((), "V4"))
    assert found([Strided((), "V4")]) == found.lows
    assert found([Strided((), "V8")]) is None


def test_what_has_no_looks_has_no_probe(probe):
    """What is no such array cannot be looked at."""
    assert probe(3.0) is None
    assert probe(_with(shape=None)) is None
