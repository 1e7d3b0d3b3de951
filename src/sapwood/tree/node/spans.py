"""The bytes that a call's arrays lie in, and whether two lie in the same ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from sapwood.tree.call.integration import Integration
from sapwood.tree.call.signature import Arrays
from sapwood.tree.node.node import Node
from sapwood.units import Addr


class Spans(NamedTuple):
    """How long the arguments of a recording are, and where what it reads besides lies.

    ``lengths`` are the bytes of each argument from where it starts, 0 for those that
    are not used; ``starts`` of the others are sorted, and ``ends`` say how far all up
    to one reach.
    """

    lengths: tuple[int, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(
        cls, node: Node, given: Arrays, ambient: Arrays, integration: Integration
    ) -> Spans:
        """Return the spans of the arrays of one call."""
        used = [place.used for place in node.places]
        lengths = (
            (place.hi - place.lo) * use
            for place, use in zip(given.places(integration), used, strict=False)
        )
        besides = zip(
            ambient.places(integration), used[node.argument_places :], strict=False
        )
        others = sorted((place.lo, place.hi) for place, use in besides if use)
        ends = accumulate((hi for _, hi in others), max)
        return cls(tuple(lengths), tuple(lo for lo, _ in others), tuple(ends))

    def are_apart(self, lows: Sequence[Addr]) -> bool:
        """Return whether arguments at these addresses share bytes with nothing.

        Quicker than `admit`, which allows that those that are fixed do.
        """
        spans = sorted(
            (low, low + length)
            for low, length in zip(lows, self.lengths, strict=True)
            if length
        )
        reached = 0
        for low, end in spans:
            before = bisect_left(self.starts, end)
            if low < reached or (before and low < self.ends[before - 1]):
                return False
            reached = end
        return True
