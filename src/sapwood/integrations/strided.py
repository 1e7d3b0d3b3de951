"""What an array of NumPy's kind looks like: a hashable value, with strides in bytes."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sapwood.tree.call.integration import reach


class Layout(NamedTuple):
    """What an array looks like; ``dtype`` is NumPy's text.

    ``aligned`` says how far its address is aligned, ``kind`` what else tells it from
    others: NumPy's whether it may be written, CuPy's which class it is of.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    aligned: int
    kind: int

    def __str__(self) -> str:
        return tuple.__repr__(self)

    @property
    def extent(self) -> tuple[int, int]:
        """The bytes ``[lo, hi)`` that the elements lie in, from the first one's."""
        return _extent(self)

    def packed(self, data: bytes) -> bytes:
        """Return the bytes of all elements in C order, of those they lie in."""
        first, steps = -self.extent[0], self.strides
        return np.ndarray(self.shape, self.dtype, data, first, steps).tobytes()


@lru_cache(4096)
def _extent(layout: Layout) -> tuple[int, int]:
    return reach(layout.shape, layout.strides, np.dtype(layout.dtype).itemsize)
