"""Parameter bytes hold what was packed, and every address in them is found."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.integrations.numpy.layout import blank_at
from sapwood.integrations.numpy.packing import constants, pack, pointers, unpack
from sapwood.integrations.strided import Layout


class Place:
    def __init__(self, address, layout):
        self.address, self.layout = address, layout

    def __eq__(self, other):
        return (self.address, self.layout) == (other.address, other.layout)

    __hash__ = None


shapes = st.lists(st.integers(0, 5), max_size=3)
places = shapes.flatmap(
    lambda shape: st.builds(
        lambda address, strides, dtype: Place(
            address, Layout(tuple(shape), tuple(strides), dtype, True, True)
        ),
        st.integers(1 << 20, 1 << 47),
        st.lists(st.integers(-999, 999), min_size=len(shape), max_size=len(shape)),
        st.sampled_from(["<f4", "|b1", "<c16", ">i2"]),
    )
)
plain = st.one_of(
    *(st.none(), st.booleans(), st.just(...), st.integers(), st.text(max_size=20)),
    *(st.floats(allow_nan=False), st.complex_numbers(allow_nan=False)),
    st.sampled_from([np.dtype("f2"), np.dtype(">i8")]),
)
values = st.recursive(
    plain | places,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.builds(slice, st.integers(), st.none() | st.integers(), inner)
    ),
    max_leaves=6,
)


@given(st.lists(places, max_size=3), st.lists(values, max_size=4))
def test_what_is_packed_comes_out(outs, ins):
    """Unpacking gives equal values of the same types back."""
    params = pack([*outs, *ins], len(outs))
    found_outs, found_ins = unpack(params, Place)
    assert found_outs == tuple(outs)
    assert repr(found_ins).replace("Place", "") == repr(tuple(ins)) or found_ins == (
        tuple(ins)
    )
    assert len(params) % 8 == 0


@given(st.lists(places, max_size=3), st.lists(values, max_size=4))
def test_every_address_is_found(outs, ins):
    """Pointers name each address, its bytes, and whether they are written."""
    params = pack([*outs, *ins], len(outs))
    found = []

    def seen(address, layout):
        low, high = layout.extent
        found.append((address, address + low, address + high))

    unpack(params, seen)
    listed = pointers(params)
    assert [
        (struct.unpack_from("<Q", params, p.offset)[0], p.lo, p.hi) for p in listed
    ] == found
    assert [p.writes for p in listed] == [n < len(outs) for n in range(len(listed))]
    assert all(p.lo <= struct.unpack_from("<Q", params, p.offset)[0] for p in listed)


@given(st.lists(values, max_size=4))
def test_constants_are_the_bytes_without_addresses(ins):
    """Leaving addresses out is zeroing them, and nothing else."""
    assert constants(pack(ins)) == pack(ins, bare=True)


def test_constants_of_different_types_differ():
    """1, True, 1.0, 1+0j and arrays of one are told apart; so are the zeros."""
    ones = [1, True, 1.0, 1 + 0j, np.float32(1), np.float64(1), np.ones(1), "1", 0.0]
    assert len({pack([value]) for value in [*ones, -0.0]}) == len(ones) + 1


def test_host_constants_keep_their_values():
    """Host arrays among the values are constants."""
    for array in (np.arange(6).reshape(2, 3).T, np.asarray(1j), np.zeros((0, 2), "?")):
        _, (found,) = unpack(pack([array]), blank_at)
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array, strict=True)


def test_what_no_kernel_takes():
    """Other objects are refused by the name of their type."""
    with pytest.raises(TypeError, match="cannot take dict"):
        pack([{}])
