"""What the models are made of: pieces of memory in a row, and shelves of free ones."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.simulate.models.model import Model


class Piece:
    """An interval of addresses, with its neighbours in the same segment.

    ``free``: it lies on its shelf.
    """

    __slots__ = ("address", "after", "before", "free", "shelf", "size")

    def __init__(self, address: int, size: int, shelf: Shelf) -> None:
        self.address, self.size, self.shelf = address, size, shelf
        self.before: Piece | None = None
        self.after: Piece | None = None
        self.free = False

    @property
    def end(self) -> int:
        """The first address after it."""
        return self.address + self.size

    def split(self, size: int) -> Piece:
        """Keep the first ``size`` bytes, and return the rest as a new piece."""
        rest = Piece(self.address + size, self.size - size, self.shelf)
        rest.before, rest.after = self, self.after
        if self.after is not None:
            self.after.before = rest
        self.after, self.size = rest, size
        return rest

    def absorb(self, after: Piece) -> None:
        """Take over the piece that follows."""
        self.size += after.size
        self.after = after.after
        if after.after is not None:
            after.after.before = self


class Shelf:
    """Free pieces, the smallest first, then the lowest."""

    def __init__(self) -> None:
        self._sorted: list[tuple[int, int, Piece]] = []

    def __iter__(self) -> Iterator[Piece]:
        return (piece for _, _, piece in self._sorted)

    def put(self, piece: Piece) -> None:
        """Offer a piece."""
        piece.free = True
        insort(self._sorted, (piece.size, piece.address, piece))

    def take(self, piece: Piece) -> None:
        """Offer a piece no longer."""
        piece.free = False
        del self._sorted[bisect_left(self._sorted, (piece.size, piece.address))]

    def from_size(self, size: int) -> Iterator[Piece]:
        """Return the pieces of at least ``size`` bytes, the best first."""
        index = bisect_left(self._sorted, (size,))
        return (self._sorted[i][2] for i in range(index, len(self._sorted)))

    def settle(self, piece: Piece) -> Piece:
        """Offer a piece, merged with its neighbours here; return what it became."""
        before, after = piece.before, piece.after
        if after is not None and after.free and after.shelf is self:
            self.take(after)
            piece.absorb(after)
        if before is not None and before.free and before.shelf is self:
            self.take(before)
            before.absorb(piece)
            piece = before
        self.put(piece)
        return piece


class Shelved(Model):
    """A model whose allocations are pieces, which go back to their shelves."""

    def __init__(self, settings: Settings, total: int) -> None:
        super().__init__(settings, total)
        self._live: dict[int, Piece] = {}

    def hand_out(self, piece: Piece, size: int, least_rest: int | None) -> int:
        """Return the address of a piece from its shelf, now of ``size`` bytes.

        What it has beyond that stays there, from ``least_rest`` bytes on; with None
        it is all handed out.
        """
        piece.shelf.take(piece)
        if least_rest is not None and piece.size - size >= least_rest:
            piece.shelf.put(piece.split(size))
        self._live[piece.address] = piece
        return piece.address

    def free(self, address: int) -> None:
        """Offer a piece again, merged with its neighbours."""
        piece = self._live.pop(address)
        piece.shelf.settle(piece)
