"""What a program allocates, and until when: a trace, as plain values.

A buffer is alive in ``[lower, upper)``. So of events at the same time the frees come
first; allocations of one time keep the order of the buffers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sapwood.allocator import planner
from sapwood.allocator.planner.buffers import check_buffers, events
from sapwood.units import Size


class Buffer(NamedTuple):
    """``size`` bytes, used on ``stream`` from ``lower`` until before ``upper``."""

    name: str
    lower: int
    upper: int
    size: Size
    stream: int = 0


@dataclass(frozen=True, slots=True)
class Trace:
    """Buffers, and the order in which they come and go.

    ``steps`` hold *n* where buffer *n* is allocated, and ``~n`` where it is freed;
    buffers without bytes are not among them. ``peak`` is the most that is alive at
    once, in bytes: nothing that serves the trace can do with less.
    """

    name: str
    buffers: tuple[Buffer, ...]
    steps: tuple[int, ...]
    peak: Size

    @classmethod
    def of(cls, name: str, buffers: Iterable[Buffer]) -> Trace:
        """Return the trace of some buffers.

        Raises `MisuseError` where one ends before it begins, or has less than no
        bytes.
        """
        kept = tuple(buffers)
        lives = [planner.Buffer(*each[1:4]) for each in kept]
        check_buffers(lives, [each.name for each in kept])
        steps = (number if begins else ~number for _, begins, number in events(lives))
        return cls(name, kept, tuple(steps), planner.lower_bound(lives))
