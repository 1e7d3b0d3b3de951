"""How large a block is that serves a request, and a segment that serves a block.

The figures are those of PyTorch's allocator, so that a program's memory behaves here
as it does there.
"""

from __future__ import annotations

from typing import Final

from sapwood.allocator.caching.picture import SizeClass
from sapwood.units import Size, align_up

GRAIN: Final = 512
"""Every block starts and ends on a multiple of this, in bytes."""

LARGEST_SMALL: Final = 1 << 20
"""The largest block of the size class ``small``."""

IMPOSSIBLE: Final = 1 << 60
"""A request of this many bytes is refused before anything is looked at."""

_SMALL_SEGMENT: Final = 2 << 20
_LEAST_OWN: Final = 10 << 20
_LARGE_ROUNDING: Final = 2 << 20


def rounded(size: int, steps: int) -> Size:
    """Return the size of the block for a request of ``size`` bytes, above 0.

    ``steps`` are the settings' divisions for it: 0 or a power of two.
    """
    if steps > 1 and size > GRAIN * steps:
        # A step is a part of the power of two below, and at least a grain.
        return Size(align_up(size, (1 << (size.bit_length() - 1)) // steps))
    return Size(align_up(size, GRAIN))


def class_of(need: int) -> SizeClass:
    """Return the size class of a block of ``need`` bytes."""
    return "small" if need <= LARGEST_SMALL else "large"


def segment_size(need: int, large_segment: int, page: int) -> Size:
    """Return the size of a classic segment made for a block of ``need`` bytes."""
    if need <= LARGEST_SMALL:
        size = _SMALL_SEGMENT
    elif need < _LEAST_OWN:
        size = max(large_segment, need)
    else:
        size = align_up(need, _LARGE_ROUNDING)
    return Size(align_up(size, page))
