"""A model that stitches: large blocks of any free pages, small ones by best fit.

Every free page of 2 MiB serves every large block, whatever its address, as where
pages are mapped into a new range for each block. That wastes nothing but the rest of
each block's last page. Small blocks share one range, which grows by pages of its own.
"""

from __future__ import annotations

from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.simulate.models.model import (
    GRANULE,
    Accounted,
    is_small,
    round_up,
)
from sapwood.allocator.simulate.models.ranges import BestFit
from sapwood.units import align_up

__all__ = ["Stitched"]

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
