"""Which streams may still be using free bytes, byte for byte.

What is used of an interval stays true of each part of it, whatever is split, merged or
unmapped meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from sapwood.driver.streams import Stream

__all__ = ["Uses"]

_Streams = frozenset[Stream]


class Uses:
    """Disjoint intervals of addresses, with the streams that may be using them."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._at: dict[int, tuple[int, _Streams]] = {}

    def add(self, start: int, end: int, streams: _Streams) -> None:
        """Remember the streams of an interval nothing is known of."""
        if streams:
            insort(self._starts, start)
            self._at[start] = end, streams

    def take(self, start: int, end: int) -> dict[Stream, None]:
        """Forget an interval; return the streams that may be using some of it."""
        starts, found = self._starts, dict[Stream, None]()
        first = bisect_right(starts, start)
        if first and self._at[starts[first - 1]][0] > start:
            first -= 1
        last = bisect_left(starts, end, first)
        touched = starts[first:last]
        del starts[first:last]
        for at in touched:
            stop, streams = self._at.pop(at)
            found.update(dict.fromkeys(streams))
            if at < start:
                self.add(at, start, streams)
            if end < stop:
                self.add(end, stop, streams)
        return found

    def streams(self) -> dict[Stream, None]:
        """Return all streams that may be using anything."""
        return dict.fromkeys(
            stream for _, streams in self._at.values() for stream in streams
        )

    def clear(self) -> None:
        """Forget everything: all of it is over."""
        self._starts.clear()
        self._at.clear()
