"""Which streams may still be using free bytes, byte for byte.

What is used of an interval stays true of each part of it, whatever is split, merged or
unmapped meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from operator import itemgetter
from typing import Final

from sapwood.driver.streams import Stream

__all__ = ["Uses"]

_Streams = frozenset[Stream]

_start: Final = itemgetter(0)


class Uses:
    """Disjoint intervals of addresses, with the streams that may be using them."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, _Streams]] = []

    def add(self, start: int, end: int, streams: _Streams) -> None:
        """Remember the streams of an interval nothing is known of."""
        if streams:
            insort(self._spans, (start, end, streams), key=_start)

    def take(self, start: int, end: int) -> dict[Stream, None]:
        """Forget an interval; return the streams that may be using some of it."""
        spans = self._spans
        first = bisect_right(spans, start, key=_start)
        if first and spans[first - 1][1] > start:
            first -= 1
        last = bisect_left(spans, end, first, key=_start)
        touched = spans[first:last]
        if not touched:
            return {}
        found = dict.fromkeys(stream for *_, streams in touched for stream in streams)
        (lo, _, before), (_, hi, behind) = touched[0], touched[-1]
        outside = (lo, start, before), (end, hi, behind)
        # In one step: an interrupt finds all of it, or nothing.
        spans[first:last] = [span for span in outside if span[0] < span[1]]
        return found

    def streams(self) -> dict[Stream, None]:
        """Return all streams that may be using anything."""
        return dict.fromkeys(
            stream for *_, streams in self._spans for stream in streams
        )

    def clear(self) -> None:
        """Forget everything: all of it is over."""
        self._spans.clear()
