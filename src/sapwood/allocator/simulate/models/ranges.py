"""Models of one growing range, without size classes and without granules.

They are bounds rather than products: memory grows by the byte, in one piece, for all
streams. What they hold is the height that the range has reached.
"""

from __future__ import annotations

from bisect import bisect_left

from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.simulate.models.model import (
    GRANULE,
    Accounted,
    is_small,
    round_up,
)
from sapwood.allocator.simulate.models.pieces import Piece, Shelf
from sapwood.units import align_up


class BestFit(Accounted):
    """The smallest free piece that suffices; of equals, the lowest."""

    def __init__(self, settings: Settings, total: int) -> None:
        super().__init__(total)
        self._settings = settings
        self._shelf = Shelf()
        self._last: Piece | None = None
        self._live: dict[int, Piece] = {}

    def allocate(self, size: int, stream: int) -> int:
        """Return the address of the best fit, or grow the range."""
        del stream
        rounded = round_up(size, self._settings)
        piece = next(self._shelf.from_size(rounded), None)
        if piece is None:
            piece = self._grow(rounded)
        else:
            self._shelf.take(piece)
            if piece.size > rounded:
                rest = piece.split(rounded)
                self._shelf.put(rest)
                if piece is self._last:
                    self._last = rest
        self._live[piece.address] = piece
        return piece.address

    def free(self, address: int) -> None:
        """Offer a piece again, merged with its neighbours."""
        piece = self._shelf.settle(self._live.pop(address))
        if piece.after is None:
            self._last = piece

    def _grow(self, size: int) -> Piece:
        last = self._last
        self._account.calls["grow"] += 1
        if last is not None and last.free:
            self._account.take(size - last.size)
            self._shelf.take(last)
            last.size = size
            return last
        self._account.take(size)
        piece = Piece(self._account.held - size, size, self._shelf)
        piece.before = last
        if last is not None:
            last.after = piece
        self._last = piece
        return piece


class FirstFit(Accounted):
    """The lowest free piece that suffices."""

    def __init__(self, settings: Settings, total: int) -> None:
        super().__init__(total)
        self._settings = settings
        self._row = Row()
        self._live: dict[int, int] = {}

    def allocate(self, size: int, stream: int) -> int:
        """Return the address of the lowest fit, or grow the range."""
        del stream
        rounded = round_up(size, self._settings)
        address = self._row.take(rounded)
        if address is None:
            address = self._grow(rounded)
        self._live[address] = rounded
        return address

    def free(self, address: int) -> None:
        """Offer a piece again, merged with its neighbours."""
        self._row.put(address, self._live.pop(address))

    def _grow(self, size: int) -> int:
        self._account.calls["grow"] += 1
        free = self._row.at_end(self._account.held)
        self._account.take(size - free)
        if free:
            self._row.take_last()
        return self._account.held - size


class Row:
    """Free intervals in the order of their addresses; none of them touch."""

    def __init__(self) -> None:
        self._addresses: list[int] = []
        self._sizes: list[int] = []

    def take(self, size: int) -> int | None:
        """Take the front of the first interval that suffices."""
        for index, free in enumerate(self._sizes):
            if free >= size:
                return self._take_front(index, size)
        return None

    def put(self, address: int, size: int) -> None:
        """Add an interval, merged with those that it touches."""
        addresses, sizes = self._addresses, self._sizes
        index = bisect_left(addresses, address)
        if index < len(addresses) and addresses[index] == address + size:
            size += sizes[index]
            del addresses[index], sizes[index]
        if index and addresses[index - 1] + sizes[index - 1] == address:
            sizes[index - 1] += size
        else:
            addresses.insert(index, address)
            sizes.insert(index, size)

    def _take_front(self, index: int, size: int) -> int:
        address = self._addresses[index]
        if self._sizes[index] == size:
            del self._addresses[index], self._sizes[index]
        else:
            self._addresses[index] = address + size
            self._sizes[index] -= size
        return address

    def at_end(self, end: int) -> int:
        """Return the size of the interval that reaches up to ``end``, or 0."""
        if self._addresses and self._addresses[-1] + self._sizes[-1] == end:
            return self._sizes[-1]
        return 0

    def take_last(self) -> None:
        """Take the last interval."""
        self._addresses.pop()
        self._sizes.pop()


_SMALL = 1 << 60
"""Where the small blocks begin: above the addresses of the large ones."""


class Stitched(Accounted):
    """Pages that come from anywhere, for all streams."""

    def __init__(self, settings: Settings, total: int) -> None:
        super().__init__(total)
        self._settings = settings
        self._small = BestFit(settings, total)
        self._small_pages = self._spare = 0
        self._live: dict[int, int] = {}
        self._next = GRANULE

    def allocate(self, size: int, stream: int) -> int:
        """Return an address in the small blocks' range, or of newly mapped pages."""
        if is_small(round_up(size, self._settings)):
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
        self._account.calls["map"] += held // GRANULE
        return address

    def free(self, address: int) -> None:
        """Give a block's pages back to all."""
        if address >= _SMALL:
            self._small.free(address - _SMALL)
            return
        size = self._live.pop(address)
        self._spare += size
        self._account.calls["unmap"] += 1

    def _create(self, size: int) -> None:
        self._account.take(size)
        self._account.calls["create"] += size // GRANULE
