"""Which arrays ops use, told from the bytes that they touch."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from sapwood.tree.call.integration import Look
from sapwood.tree.record.recorder import used_by

SPANS = st.tuples(st.integers(0, 30), st.integers(0, 6)).map(
    lambda pair: (pair[0], sum(pair))
)


class Piece(NamedTuple):
    """Stands for an array over some bytes of a storage."""

    lo: int
    hi: int
    storage: int


class Bounds(NamedTuple):
    """The layout of a piece."""

    extent: tuple[int, int]


class Pieces:
    """The adapter of such arrays."""

    def is_array(self, value):
        return type(value) is Piece

    def look(self, piece):
        return Look(Bounds((0, piece.hi - piece.lo)), piece.storage, piece.lo)


@given(st.lists(SPANS, max_size=8), st.lists(SPANS, max_size=8), st.integers(-1, 8))
def test_an_array_is_used_if_its_bytes_are_or_its_storage_is_left(spans, arrays, left):
    """Whatever overlaps and however they are ordered; bytes of no length included."""
    pieces = [Piece(lo, hi, k) for k, (lo, hi) in enumerate(arrays)]
    used = used_by(spans, [Piece(0, 1, left)], Pieces())
    for piece in pieces:
        touched = any(lo < piece.hi and piece.lo < hi for lo, hi in spans)
        assert used(piece) == (touched or piece.storage == left)
