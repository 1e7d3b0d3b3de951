"""A layout made with the whole trace in view: each request has its place."""

from __future__ import annotations

import math
from typing import Final

from sapwood.allocator import planner
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.simulate.models.model import Model
from sapwood.allocator.simulate.trace import Trace

_STEPS: Final = 20
"""How long the planner searches: without a clock, a layout is always the same."""


class Planned(Model):
    """Hands out the offsets of a layout, in the order of the requests, each time over.

    All of its memory is taken with the first request.
    Streams share it: whoever follows such a layout orders them by events.
    """

    def __init__(self, trace: Trace, settings: Settings, total: int) -> None:
        super().__init__(settings, total)
        served = (trace.buffers[step] for step in trace.steps if step >= 0)
        buffers = [
            planner.Buffer(b.lower, b.upper, self.block_size(b.size)) for b in served
        ]
        self._plan = planner.plan(buffers, seconds=math.inf, steps=_STEPS)
        self._served = 0

    def allocate(self, size: int, stream: int) -> int:
        """Return the next request's offset."""
        del size, stream
        if not self.reserved:
            self.take(self._plan.height)
            self.calls["malloc"] += 1
        offset = self._plan.offsets[self._served % len(self._plan.offsets)]
        self._served += 1
        return offset

    def free(self, address: int) -> None:
        """Do nothing: the layout knows when."""
