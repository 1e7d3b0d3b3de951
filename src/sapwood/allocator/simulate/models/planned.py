"""A layout made with the whole trace in view: each request has its place."""

from __future__ import annotations

from dataclasses import dataclass

from sapwood.allocator.simulate.models.model import Accounted


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each buffer begins, and where the last of them ends."""

    offsets: tuple[int, ...]
    height: int


class Planned(Accounted):
    """Hands out the offsets of a layout, in the order of the requests, each time over.

    All of its memory is taken with the first request. Streams share it: whoever
    follows such a layout orders them by events.
    """

    def __init__(self, layout: Layout, total: int) -> None:
        self._offsets, self._height = layout.offsets, layout.height
        super().__init__(total)
        self._served = 0

    def allocate(self, size: int, stream: int) -> int:
        """Return the next request's offset."""
        del size, stream
        if not self._account.held:
            self._account.take(self._height)
            self._account.calls["malloc"] += 1
        offset = self._offsets[self._served % len(self._offsets)]
        self._served += 1
        return offset

    def free(self, address: int) -> None:
        """Do nothing: the layout knows when."""
