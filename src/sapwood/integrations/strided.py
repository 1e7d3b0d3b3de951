"""What an array of NumPy's kind looks like: a hashable value, with strides in bytes.

And what a generator of NumPy's kind looks like: its state, as words.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

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
    @lru_cache(4096)  # noqa: B019 - of values, which are no one's
    def extent(self) -> tuple[int, int]:
        """The bytes ``[lo, hi)`` that the elements lie in, from the first one's."""
        return reach(self.shape, self.strides, np.dtype(self.dtype).itemsize)

    def packed(self, data: bytes) -> bytes:
        """Return the bytes of all elements in C order, of those they lie in."""
        first, steps = -self.extent[0], self.strides
        return np.ndarray(self.shape, self.dtype, data, first, steps).tobytes()


def bits_of(host: Any) -> Any:
    """Return the only element of a host array, or the bytes of all, in C order.

    The element is NumPy's: Python's number would lose bits of a NaN.
    """
    return host.reshape(())[()] if host.size == 1 else host.tobytes()


def fill(host: Any, bits: Any) -> None:
    """Write into a host array what `bits_of` gave of one of its shape and dtype."""
    if host.size != 1:
        bits = np.frombuffer(bits, host.dtype).reshape(host.shape)
    host[...] = bits


WORDS: Final = 13
"""Of a Philox state: counter (4), key (2), buffer (4), place in the buffer, and the
kept half of a word (a flag, its value)."""


def state_words(philox: np.random.Philox) -> Any:
    """Return the state of a bit generator as words."""
    state: Any = philox.state
    words = np.empty(WORDS, np.uint64)
    words[0:4] = state["state"]["counter"]
    words[4:6] = state["state"]["key"]
    words[6:10] = state["buffer"]
    words[10:] = state["buffer_pos"], state["has_uint32"], state["uinteger"]
    return words
