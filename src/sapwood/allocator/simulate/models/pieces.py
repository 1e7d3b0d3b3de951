"""What the models are made of: pieces of memory in a row, and shelves of free ones."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.simulate.models.model import Model


@dataclass(slots=True, eq=False)
class Piece:
    """An interval of addresses, and the shelf that it lies on while it is free."""

    address: int
    size: int
    shelf: Shelf

    @property
    def end(self) -> int:
        """The first address after it."""
        return self.address + self.size

    def split(self, size: int) -> Piece:
        """Keep the first ``size`` bytes, and return the rest as a new piece."""
        rest = Piece(self.address + size, self.size - size, self.shelf)
        self.size = size
        return rest


class Shelf:
    """Free pieces, the smallest first, then the lowest; those that touch are one.

    ``begins`` and ``ends`` have them by where they begin and end.
    """

    def __init__(self) -> None:
        self._sorted: list[tuple[int, int, Piece]] = []
        self.begins: dict[int, Piece] = {}
        self.ends: dict[int, Piece] = {}

    def __iter__(self) -> Iterator[Piece]:
        return (piece for _, _, piece in self._sorted)

    def put(self, piece: Piece) -> Piece:
        """Offer a piece, merged with its neighbours here; return what it became."""
        for other in (self.ends.get(piece.address), self.begins.get(piece.end)):
            if other is not None:
                self.take(other)
                piece.address = min(piece.address, other.address)
                piece.size += other.size
        insort(self._sorted, (piece.size, piece.address, piece))
        self.begins[piece.address] = self.ends[piece.end] = piece
        return piece

    def take(self, piece: Piece) -> None:
        """Offer a piece no longer."""
        del self._sorted[bisect_left(self._sorted, (piece.size, piece.address))]
        del self.begins[piece.address], self.ends[piece.end]

    def from_size(self, size: int) -> Iterator[Piece]:
        """Return the pieces of at least ``size`` bytes, the best first."""
        index = bisect_left(self._sorted, (size,))
        return (self._sorted[i][2] for i in range(index, len(self._sorted)))


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
        piece.shelf.put(piece)
