"""What CuPy leaves in memory that no kernel reads is found by its shape alone."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

indexers = pytest.importorskip(
    "sapwood.integrations.cupy.indexers", exc_type=ImportError
)

sizes = st.lists(st.integers(0, 1 << 9), min_size=1, max_size=6)
garbage = st.integers(-(1 << 63), (1 << 63) - 1)


@given(sizes, st.data(), st.integers(0, 5))
def test_an_index_is_not_read(shape, data, before):
    """Behind the size and the shape of a ``CIndexer`` lies an index."""
    index = data.draw(st.lists(garbage, min_size=len(shape), max_size=len(shape)))
    words = [math.prod(shape), *shape, *index]
    params = bytes(8 * before) + struct.pack(f"<{len(words)}q", *words)
    found = list(indexers.unread(((8 * before, 8 * len(words)),), params))
    assert found == [(8 * (before + 1 + len(shape)), 8 * (before + len(words)))]


@given(sizes, st.integers(1 << 30, 1 << 56))
def test_an_array_is_read(shape, address):
    """A ``CArray`` is a pointer, a size, a shape and strides, all of them read."""
    words = [address, math.prod(shape), *shape, *shape]
    params = struct.pack(f"<{len(words)}q", *words)
    assert not list(indexers.unread(((0, len(params)),), params))
