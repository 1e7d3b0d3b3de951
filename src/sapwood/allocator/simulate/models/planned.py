"""A layout made with the whole trace in view: each request has its place."""

from __future__ import annotations

import math
from operator import add
from typing import Final

from sapwood.allocator import planner
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.simulate.models.model import Model, round_up
from sapwood.allocator.simulate.trace import Trace
from sapwood.units import Size

_STEPS: Final = 20
"""How long the planner searches: without a clock, a layout is always the same."""


class Planned(Model):
    """Hands out the offsets of a layout, in the order of the requests, each time over.

    All of its memory is taken with the first request.
    Streams share it: whoever follows such a layout orders them by events.
    """

    def __init__(self, trace: Trace, settings: Settings, total: int) -> None:
        super().__init__(settings, total)
        served = [trace.buffers[step] for step in trace.steps if step >= 0]
        sizes = [Size(round_up(buffer.size, settings)) for buffer in served]
        buffers = [
            planner.Buffer(buffer.lower, buffer.upper, size)
            for buffer, size in zip(served, sizes, strict=True)
        ]
        made = planner.plan(buffers, seconds=math.inf, steps=_STEPS)
        self._offsets = made.offsets
        self._height = max(map(add, self._offsets, sizes), default=0)
        self._served = 0

    def allocate(self, size: int, stream: int) -> int:
        """Return the next request's offset."""
        del size, stream
        if not self.reserved:
            self.take(self._height)
            self.calls["malloc"] += 1
        offset = self._offsets[self._served % len(self._offsets)]
        self._served += 1
        return offset

    def free(self, address: int) -> None:
        """Do nothing: the layout knows when."""
