"""What CuPy's kernels are passed and do not read.

A ``CIndexer`` is a size, a shape, and room for an index that the kernel makes itself:
CuPy leaves there whatever was in that memory, stale addresses among it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Final

_WORD: Final = 8


def unread(
    layout: tuple[tuple[int, int], ...], params: bytes
) -> Iterator[tuple[int, int]]:
    """Yield the bytes of all indices, by ``(offset, size)`` of the parameters."""
    for offset, size in layout:
        axes, rest = divmod(size - _WORD, 2 * _WORD)
        if rest or axes < 1:
            continue
        count, *shape = struct.unpack_from(f"<{1 + axes}q", params, offset)
        # Nothing else is as long and begins with the product of what follows.
        if count == math.prod(shape):
            yield offset + _WORD * (1 + axes), offset + size
