"""A model of PyTorch's allocator with fixed segments.

Small blocks come from segments of 2 MiB, large ones from segments of 20 MiB or of
their own size; the best fit is split, neighbours merge, streams share nothing.
"""

from __future__ import annotations

from collections import defaultdict

from sapwood.allocator.caching.picture import SizeClass
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.caching.sizes import class_of, segment_size
from sapwood.allocator.simulate.models.model import GRANULE
from sapwood.allocator.simulate.models.pieces import Piece, Shelf, Shelved
from sapwood.errors import OutOfMemory
from sapwood.units import align_up

_LEAST_REST: dict[SizeClass, int] = {"small": 512, "large": (1 << 20) + 1}
"""The smallest rest that is split off, of small blocks and of large ones."""


class Classic(Shelved):
    """Fixed segments, best fit, and the rules for splitting large blocks."""

    def __init__(self, settings: Settings, total: int) -> None:
        super().__init__(settings, total)
        self._shelves: defaultdict[tuple[SizeClass, int], Shelf] = defaultdict(Shelf)
        self._segments: dict[int, int] = {}
        self._next = GRANULE

    def allocate(self, size: int, stream: int) -> int:
        """Return the address of a block of the best fit, or of a new segment."""
        rounded = self.block_size(size)
        size_class = class_of(rounded)
        shelf = self._shelves[size_class, stream]
        piece = self._fit(shelf, rounded) or self._grow(shelf, rounded)
        limit = self.settings.max_split_size
        splits = size_class == "small" or limit is None or rounded < limit
        least = _LEAST_REST[size_class] if splits else None
        return self.hand_out(piece, rounded, least)

    def _fit(self, shelf: Shelf, rounded: int) -> Piece | None:
        piece = next(shelf.from_size(rounded), None)
        limit = self.settings.max_split_size
        if piece is None or limit is None:
            return piece
        if rounded < limit:
            return piece if piece.size < limit else None
        most = rounded + self.settings.max_non_split_rounding
        return piece if piece.size < most else None

    def _grow(self, shelf: Shelf, rounded: int) -> Piece:
        size = segment_size(rounded, self.settings.large_segment_size, page=1)
        try:
            self.take(size)
        except OutOfMemory:
            self._release_cached()
            self.take(size)
        self.calls["malloc"] += 1
        piece = Piece(self._next, size, shelf)
        self._segments[piece.address] = size
        self._next += align_up(size, GRANULE) + GRANULE
        return shelf.put(piece)

    def _release_cached(self) -> None:
        for shelf in self._shelves.values():
            for piece in list(shelf):
                if piece.size == self._segments.get(piece.address):
                    shelf.take(piece)
                    self.give(piece.size)
                    self.calls["free"] += 1
