"""Constants compare by type and bits, everything else by identity."""

from __future__ import annotations

import datetime
import decimal
import enum
import gc
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.tree.nests.containers import Identity, constant_key


class Color(enum.IntEnum):
    RED = 1


class Named(int):
    """A plain number of its own type."""


class Thing:
    def method(self):
        return 1

    def other(self):
        return 2


THING = Thing()

DISTINCT = [
    0,
    False,
    0.0,
    -0.0,
    0j,
    complex(0.0, -0.0),
    None,
    ...,
    "",
    b"",
    bytearray(),
    (),
    frozenset(),
    float("nan"),
    struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0001))[0],
    1,
    True,
    1.0,
    Color.RED,
    Named(1),
    np.int32(1),
    np.int64(1),
    np.float32(1),
    np.float64(1),
    np.bool_(True),
    np.dtype("f4"),
    np.dtype("f8"),
    np.float32,
    (1,),
    (True,),
    (1.0,),
    range(1),
    range(0, 1, 2),
    slice(1),
    slice(True),
    slice(1, 2),
    len,
    [].append,
    THING.method,
    THING.other,
    Thing().method,
    THING,
    Thing(),
    Thing,
    decimal.Decimal("1.0"),
    decimal.Decimal("1.00"),
    datetime.date(2020, 1, 1),
    datetime.datetime(2020, 1, 1),
    Path("a"),
    Path("b"),
]


def test_different_constants_differ():
    """No two of these are the same: not even those that Python calls equal."""
    keys = [constant_key(value) for value in DISTINCT]
    assert len(set(keys)) == len(keys)
    for i, a in enumerate(keys):
        for j, b in enumerate(keys):
            assert (a == b) == (i == j), (DISTINCT[i], DISTINCT[j])


ANEW = {
    'float("nan")': lambda: float("nan"),
    'float("1e100")': lambda: float("1e100"),
    'complex("1+nanj")': lambda: complex("1+nanj"),
    'int("123456789")': lambda: int("123456789"),
    '"ab" * 2': lambda: "ab" * 2,
    "bytes([1, 2])": lambda: bytes([1, 2]),
    "bytearray([1, 2])": lambda: bytearray([1, 2]),
    '(1, (2.0, float("nan")))': lambda: (1, (2.0, float("nan"))),
    'slice(1, float("2"), None)': lambda: slice(1, float("2"), None),
    'np.float32("nan")': lambda: np.float32("nan"),
    'np.datetime64("2020-01-01")': lambda: np.datetime64("2020-01-01"),
    'np.dtype("f4")': lambda: np.dtype("f4"),
    "Named(1)": lambda: Named(1),
    "THING.method": lambda: THING.method,
    "datetime.datetime(2020, 1, 1, fold=1)": lambda: datetime.datetime(
        2020, 1, 1, fold=1
    ),
    'Path("a")': lambda: Path("a"),
}


@pytest.mark.parametrize("make", ANEW.values(), ids=ANEW.keys())
def test_equal_constants_made_anew_are_equal(make):
    """The same type and bits are the same constant, whatever object holds them."""
    assert constant_key(make()) == constant_key(make())
    assert hash(constant_key(make())) == hash(constant_key(make()))


@given(st.floats(), st.floats())
def test_floats_compare_by_bits(a, b):
    """Two floats are the same constant if and only if all bits are the same."""
    same = struct.pack("<d", a) == struct.pack("<d", b)
    assert (constant_key(a) == constant_key(b)) == same


@given(st.complex_numbers(allow_nan=True), st.complex_numbers(allow_nan=True))
def test_complex_numbers_compare_by_bits(a, b):
    """So are complex ones."""
    same = struct.pack("<2d", a.real, a.imag) == struct.pack("<2d", b.real, b.imag)
    assert (constant_key(a) == constant_key(b)) == same


def test_sets_compare_by_what_they_hold_now():
    """A set that was added to is another constant."""
    values = {1, 2}
    before = constant_key(values)
    assert before == constant_key({1, 2})
    values.add(3)
    assert before != constant_key(values)


def test_numbers_with_attributes_compare_by_identity():
    """What a plain number carries along could be anything."""
    a, b = Named(1), Named(1)
    a.more = b.more = 1
    assert constant_key(a) != constant_key(b)
    assert constant_key(a) == constant_key(a)


def test_an_identity_ends_with_its_object():
    """An object that is gone equals nothing that comes after it, and is not kept."""
    thing = Thing()
    key = Identity(thing)
    assert key == Identity(thing)
    assert hash(key) == hash(Identity(thing))
    assert key != 3
    del thing
    gc.collect()
    assert key.target() is None
    assert key == key  # noqa: PLR0124 - a dead key must still be found in a dict
    assert all(key != Identity(Thing()) for _ in range(10))
    assert repr(key) == "<Identity of NoneType>"


def test_objects_that_cannot_be_held_weakly_are_kept():
    """Their identity would otherwise go to somebody else."""
    key = constant_key(object())
    assert key == Identity(key.target())


def test_devices_of_torch_are_plain_values():
    """Every tensor gives another object for its device."""
    torch = pytest.importorskip("torch")
    first, again = (constant_key(torch.device("cuda", 0)) for _ in range(2))
    assert first == again != constant_key(torch.device("cuda", 1))
