"""Places for the buffers of a whole trace in one range, by the planner."""

from __future__ import annotations

from collections.abc import Sequence

from sapwood.allocator import planner
from sapwood.allocator.simulate.models.planned import Layout
from sapwood.allocator.simulate.trace import Buffer
from sapwood.units import Size


def lay_out(buffers: Sequence[Buffer], sizes: Sequence[int]) -> Layout:
    """Return places for buffers that take up ``sizes`` bytes each, the largest first.

    There is no search and no clock, so a layout is always the same.
    """
    lives = [
        planner.Buffer(buffer.lower, buffer.upper, Size(size))
        for buffer, size in zip(buffers, sizes, strict=True)
    ]
    offsets = planner.largest_first(lives)
    ends = (offset + size for offset, size in zip(offsets, sizes, strict=True))
    return Layout(offsets, max(ends, default=0))
