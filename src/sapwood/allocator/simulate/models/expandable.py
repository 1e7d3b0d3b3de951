"""A model of PyTorch's allocator with expandable segments.

Each stream has one growing range for small blocks, mapped in granules of 2 MiB, and
one for large blocks, in granules of 20 MiB. Short of memory, whole free granules are
unmapped; the holes are mapped again before a range grows at its end.
"""

from __future__ import annotations

from operator import attrgetter

from sapwood.allocator.caching.picture import SizeClass
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.caching.sizes import class_of
from sapwood.allocator.simulate.models.model import GRANULE, Model
from sapwood.allocator.simulate.models.pieces import Piece, Shelf, Shelved
from sapwood.errors import OutOfMemory
from sapwood.units import align_down, align_up

_LEAST_REST = 512
_SPAN = 1 << 50
"""Addresses of one range: more than any trace needs."""


class Expandable(Shelved):
    """One growing range per stream and size class."""

    def __init__(self, settings: Settings, total: int) -> None:
        super().__init__(settings, total)
        self._ranges: dict[tuple[SizeClass, int], _Range] = {}

    def allocate(self, size: int, stream: int) -> int:
        """Return the address of a block in the range of its stream and class."""
        rounded = self.block_size(size)
        place = class_of(rounded), stream
        found = self._ranges.get(place)
        if found is None:
            small = place[0] == "small"
            granule = GRANULE if small else self.settings.large_segment_size
            base = align_up(_SPAN * (1 + len(self._ranges)), granule)
            found = _Range(base, granule, self)
            self._ranges[place] = found
        piece = found.fit(rounded) or self._grow(found, rounded)
        return self.hand_out(piece, rounded, _LEAST_REST)

    def _grow(self, home: _Range, rounded: int) -> Piece:
        try:
            home.grow(rounded)
        except OutOfMemory:
            for each in self._ranges.values():
                each.trim()
            home.grow(rounded)
        piece = home.fit(rounded)
        if piece is None:
            raise OutOfMemory("allocate", asked=rounded, free=self.left)
        return piece


class _Range:
    """Pieces in a row: used ones, free ones on a shelf, and holes on another."""

    def __init__(self, base: int, granule: int, account: Model) -> None:
        self.granule, self.account = granule, account
        self.shelf, self.holes = Shelf(), Shelf()
        self.holes.put(Piece(base, align_down(_SPAN // 2, granule), self.holes))

    def fit(self, size: int) -> Piece | None:
        """Return the best fit: rather not at the end that can grow."""
        best: Piece | None = None
        for piece in self.shelf.from_size(size):
            if best is not None and self._potential(piece) >= self._potential(best):
                break
            best = piece
        return best

    def grow(self, size: int) -> None:
        """Map granules at the lowest run of free and unmapped pieces that suffices."""
        for hole in sorted(self.holes, key=attrgetter("address")):
            run = [self.shelf.ends.get(hole.address, hole)]
            while sum(piece.size for piece in run) < size and (
                after := self.shelf.begins.get(run[-1].end)
                or self.holes.begins.get(run[-1].end)
            ):
                run.append(after)
            if sum(piece.size for piece in run) >= size:
                self._map_run(run, size)
                return

    def trim(self) -> None:
        """Unmap the whole granules inside free pieces."""
        for piece in list(self.shelf):
            lo = align_up(piece.address, self.granule)
            hi = align_down(piece.end, self.granule)
            if lo < hi:
                self._unmap(piece, lo, hi)

    def _map_run(self, run: list[Piece], size: int) -> None:
        missing = size
        for piece in run:
            count = piece.size
            if piece.shelf is self.holes:
                count = min(align_up(missing, self.granule), count)
                self._map(piece, count)
            missing -= count

    def _map(self, hole: Piece, size: int) -> None:
        self.account.take(size)
        count = size // self.granule
        self.account.calls.update(create=count, map=count, set_access=1)
        self.holes.take(hole)
        if size < hole.size:
            self.holes.put(hole.split(size))
        hole.shelf = self.shelf
        self.shelf.put(hole)

    def _unmap(self, piece: Piece, lo: int, hi: int) -> None:
        self.shelf.take(piece)
        if hi < piece.end:
            self.shelf.put(piece.split(hi - piece.address))
        if lo > piece.address:
            front, piece = piece, piece.split(lo - piece.address)
            self.shelf.put(front)
        self.account.give(piece.size)
        count = piece.size // self.granule
        self.account.calls.update(unmap=count, release=count)
        piece.shelf = self.holes
        self.holes.put(piece)

    def _potential(self, piece: Piece) -> int:
        """Return the size that a piece can grow to."""
        after = self.holes.begins.get(piece.end)
        return piece.size + (after.size if after else 0)
