"""The addresses that emulated devices of this process share.

Far from the heap and from libraries, so that a device address is known by its value.
Addresses given back are reused last, so that use after that shows.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, insort
from collections.abc import Iterator

from sapwood.driver.api import Access
from sapwood.driver.emulated import linux
from sapwood.driver.results import Result
from sapwood.units import Addr, Size, align_up, size_text

LOW, HIGH = 0x6000_0000_0000, 0x7000_0000_0000
"""Device addresses lie in ``[LOW, HIGH)``."""
_HEADROOM = 4096  # mappings that Linux must leave to the rest of the process


class Window:
    """Which of the addresses are taken."""

    def __init__(self) -> None:
        # A finaliser that runs inside `take` may give addresses of another device back.
        self.lock = threading.RLock()
        self._taken: list[tuple[int, int]] = []
        self._last = LOW

    def take(self, size: Size, page: Size) -> Addr:
        """Reserve free addresses that are a multiple of a page."""
        with self.lock:
            for address in self._candidates(size, page):
                try:
                    linux.reserve(address, size)
                except FileExistsError:
                    continue
                insort(self._taken, (address, address + size))
                self._last = address + size
                return address
        raise Result.OUT_OF_MEMORY.refusal(
            f"no {size_text(size)} of free addresses are left: give reservations back"
        )

    def give(self, address: Addr, size: Size) -> None:
        """Give a reservation back to the process."""
        with self.lock:
            linux.unmap(address, size)
            del self._taken[bisect_left(self._taken, (address, address + size))]

    def most(self) -> float:
        """Return how many reservations and mappings there may be."""
        return (linux.max_map_count() - _HEADROOM) // 2

    def protect(self, address: Addr, size: Size, access: Access) -> None:
        """Set what the processor may do with mapped memory."""
        linux.protect(address, size, access)

    def cover(self, address: Addr, size: Size) -> None:
        """Unmap what lies at reserved addresses and keep the addresses."""
        linux.cover(address, size)

    def _candidates(self, size: Size, page: Size) -> Iterator[Addr]:
        """Yield starts of free intervals, those behind the last reservation first."""
        ends = [LOW, *(hi for _, hi in self._taken)]
        starts = [*(lo for lo, _ in self._taken), HIGH]
        gaps = list(zip(ends, starts, strict=True))
        behind = [(max(lo, self._last), hi) for lo, hi in gaps if hi > self._last]
        for lo, hi in (*behind, *gaps):
            # Somebody else's mapping may lie in a gap: look behind it, too.
            for address in range(align_up(lo, page), hi - size + 1, size):
                yield Addr(address)


WINDOW = Window()

os.register_at_fork(
    before=WINDOW.lock.acquire,
    after_in_parent=WINDOW.lock.release,
    after_in_child=WINDOW.lock.release,
)
