"""What no packing can do without: the most that is in use at once."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from sapwood.allocator.planner.buffers import Buffer, check_alignment, check_buffers
from sapwood.units import Size, align_up

__all__ = ["lower_bound"]


def lower_bound(buffers: Sequence[Buffer], alignment: int = 1) -> Size:
    """Return a height in bytes that no plan can go below.

    At each time the buffers in use lie above each other. All begin at multiples of
    ``alignment``, so each but the topmost takes up its size rounded up to that. Raises
    `MisuseError` for impossible buffers, and alignments below 1.
    """
    check_buffers(buffers)
    check_alignment(alignment)
    events = sorted(
        (time, begins, number)
        for number, (lower, upper, size) in enumerate(buffers)
        if size
        for time, begins in ((upper, False), (lower, True))
    )
    live = bound = 0
    spare: list[tuple[int, int]] = []
    for time, begins, number in events:
        size = buffers[number].size
        taken = align_up(size, alignment)
        if not begins:
            live -= taken
            continue
        live += taken
        heapq.heappush(spare, (size - taken, number))
        while buffers[spare[0][1]].upper <= time:
            heapq.heappop(spare)
        bound = max(bound, live + spare[0][0])
    return Size(bound)
