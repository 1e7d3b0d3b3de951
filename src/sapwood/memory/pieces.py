"""The addresses of one range: its two halves, and pieces that were added to them."""

from __future__ import annotations

from typing import Final

from sapwood.driver.release import Release
from sapwood.memory.blocks import Blocks
from sapwood.memory.pages import Pages
from sapwood.units import Addr, Size, align_up

__all__ = ["Piece", "Pieces"]

LEAST: Final = 16
"""How many pages a piece has at the least: addresses are many, reservations cost."""


class Piece:
    """Blocks that grow inside of reserved addresses, up to ``stop``."""

    __slots__ = ("blocks", "stop")

    def __init__(self, start: Addr, stop: Addr) -> None:
        self.blocks, self.stop = Blocks(start), stop


class Pieces:
    """What is reserved; ``temporaries``, what is ``staying`` and ``late`` lie apart."""

    def __init__(self, pages: Pages, base: Addr, half: Size, size: Size) -> None:
        self.pages = pages
        self._reserved = {base: size}
        middle = Addr(base + half)
        self.temporaries = [Piece(base, middle)]
        self.staying = [Piece(middle, Addr(base + size))]
        self.late: list[Piece] = []

    def spans(self) -> list[tuple[Addr, Addr]]:
        """Return what is reserved: both halves as one, then each further piece."""
        return [(at, Addr(at + size)) for at, size in self._reserved.items()]

    def open(self, pieces: list[Piece], size: Size) -> Piece:
        """Return the last of some pieces, which may grow until ``size`` bytes fit.

        It is a new one where the others are too small. Raises `DriverError`.
        """
        page = self.pages.page
        if pieces:
            blocks = pieces[-1].blocks
            if blocks.end + align_up(blocks.missing(size), page) <= pieces[-1].stop:
                return pieces[-1]
        room = Size(align_up(max(size, LEAST * page), page))
        start = self.pages.reserve(room)
        self._reserved[start] = room
        pieces.append(Piece(start, Addr(start + room)))
        return pieces[-1]

    def give_back(self) -> None:
        """Give all addresses back, where nothing is mapped any more."""
        reserved, self._reserved = self._reserved, {}
        with Release() as release:
            for at, size in reserved.items():
                release(self.pages.driver.unreserve, at, size)
