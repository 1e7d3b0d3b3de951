"""Models of one growing range, without size classes and without granules.

They are bounds rather than products: memory grows by the byte, in one piece, for all
streams. What they hold is the height that the range has reached.
"""

from __future__ import annotations

from operator import attrgetter

from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.caching.sizes import class_of
from sapwood.allocator.simulate.models.model import GRANULE, Model
from sapwood.allocator.simulate.models.pieces import Piece, Shelf, Shelved
from sapwood.units import align_up


class BestFit(Shelved):
    """The smallest free piece that suffices; of equals, the lowest."""

    def __init__(self, settings: Settings, total: int) -> None:
        super().__init__(settings, total)
        self._shelf = Shelf()
        self._end = 0

    def allocate(self, size: int, stream: int) -> int:
        """Return the address of what fits, or grow the range."""
        del stream
        rounded = self.block_size(size)
        piece = self._fit(rounded) or self._grow(rounded)
        return self.hand_out(piece, rounded, 1)

    def _fit(self, size: int) -> Piece | None:
        return next(self._shelf.from_size(size), None)

    def _grow(self, size: int) -> Piece:
        """Return a free piece at the end, which had less than ``size`` bytes."""
        last = self._shelf.ends.get(self._end)
        self.calls["grow"] += 1
        lacking = size - last.size if last is not None else size
        self.take(lacking)
        piece = Piece(self._end, lacking, self._shelf)
        self._end = piece.end
        return self._shelf.put(piece)


class FirstFit(BestFit):
    """The lowest free piece that suffices."""

    def _fit(self, size: int) -> Piece | None:
        return min(self._shelf.from_size(size), key=attrgetter("address"), default=None)


_SMALL = 1 << 60
"""Where the small blocks begin: above the addresses of the large ones."""


class Stitched(Model):
    """Pages that come from anywhere, for all streams."""

    def __init__(self, settings: Settings, total: int) -> None:
        super().__init__(settings, total)
        self._small = BestFit(settings, total)
        self._small_pages = self._spare = 0
        self._live: dict[int, int] = {}
        self._next = GRANULE

    def allocate(self, size: int, stream: int) -> int:
        """Return an address in the small blocks' range, or of newly mapped pages."""
        if class_of(self.block_size(size)) == "small":
            address = self._small.allocate(size, stream)
            height = align_up(self._small.reserved, GRANULE)
            self._create(height - self._small_pages)
            self._small_pages = height
            return _SMALL + address
        held = align_up(size, GRANULE)
        fresh = max(held - self._spare, 0)
        self._create(fresh)
        self._spare -= held - fresh
        address, self._next = self._next, self._next + held
        self._live[address] = held
        self.calls["map"] += held // GRANULE
        return address

    def free(self, address: int) -> None:
        """Give a block's pages back to all."""
        if address >= _SMALL:
            self._small.free(address - _SMALL)
            return
        self._spare += self._live.pop(address)
        self.calls["unmap"] += 1

    def _create(self, size: int) -> None:
        self.take(size)
        self.calls["create"] += size // GRANULE
