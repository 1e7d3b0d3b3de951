"""Addresses that somebody else allocates from, backed only until that is over.

One extent stands behind all of them, again and again: what is captured meanwhile never
runs. A driver charges by the piece that is mapped, and by the size of what is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from sapwood.driver.api import Access
from sapwood.driver.release import Release
from sapwood.memory.cover import grain, power_above, power_below
from sapwood.memory.pages import Extent, Pages
from sapwood.units import Addr, Size, align_up

__all__ = ["Loan"]

WIDE: Final = Size(256 << 20)
"""How large an extent to lend is at the most, unless sixteen are too few. Mapping one
costs an H200 60 us, large or small; making and releasing this much costs it 90."""


class Loan:
    """The addresses of a range from ``at`` on, ``room`` pages; half of them are lent.

    What is mapped is whole extents, which may end as far behind as they are large.

    ``beside`` are the extents that lie elsewhere in the range.
    """

    def __init__(
        self, pages: Pages, at: Addr, room: int, beside: Mapping[int, Extent]
    ) -> None:
        self.pages, self.at, self.most = pages, at, max(1, room // 2)
        self._beside = beside
        self._mapped: tuple[Extent, Size] | None = None
        self._wide: Extent | None = None

    def spare(self) -> list[Extent]:
        """Return the scratch extents that may be mapped anywhere in the range."""
        # What was made to be lent goes when that ends: nothing else may lie on it.
        taken = {*self._beside.values(), self._wide}
        return [e for e in self.pages.extents if e.scratch and e not in taken]

    def lend(self, size: Size) -> tuple[Addr, Size]:
        """Back addresses for ``size`` bytes; return where and how many."""
        page = self.pages.page
        count = min(max(1, align_up(size, page) // page), self.most)
        return self.at, self._map(count, self._aside(count))

    def less(self, create: Callable[..., Extent | None]) -> bool:
        """Lend the same addresses with less, if more was made for it; say if so.

        What there is stands behind them, or what ``create`` makes, or nothing.
        """
        if self._mapped is None or self._wide is None:
            return False
        _, size = self._mapped
        count = size // self.pages.page
        self.take_back()
        least = grain(count)
        spare = (e for e in self.spare() if least <= e.pages <= self.most)
        extent = next(spare, None) or create(least, scratch=True)
        if extent is not None:
            self._map(count, extent)
        return True

    def take_back(self) -> None:
        """Unmap what is lent, if anything is; what was made for it goes."""
        mapped, self._mapped = self._mapped, None
        if self._wide is not None:
            self._wide, self.pages.spare = None, bool
        if mapped is None:
            return
        extent, size = mapped
        extent.ranges -= 1
        with Release() as release:
            if size:
                release(self.pages.driver.unmap, self.at, size)
            if not extent.ranges:
                release(self.pages.release, extent)

    def _map(self, count: int, extent: Extent) -> Size:
        driver, step = self.pages.driver, extent.pages * self.pages.page
        whole = Size(-(-count // extent.pages) * step)
        extent.ranges += 1
        self._mapped = extent, Size(0)
        for offset in range(0, whole, step):
            driver.map(Addr(self.at + offset), extent.handle)
            self._mapped = extent, Size(offset + step)
        driver.set_access(self.at, whole, Access.READ_WRITE)
        return whole

    def _aside(self, count: int) -> Extent:
        """Return an extent to lend ``count`` pages with: a large one, if it is to have.

        Nobody is to lose anything for one that is larger than need be.
        """
        least, most = grain(count), WIDE // self.pages.page
        above, below = (
            max(least, min(power, most, self.most))
            for power in (power_above(count), power_below(count))
        )
        fitting = (e for e in self.spare() if e.pages <= self.most)
        largest = max(fitting, key=lambda e: e.pages, default=None)
        if largest is not None and 2 * largest.pages >= above:
            return largest
        for wanted in dict.fromkeys((above, below)):
            self._wide = self.pages.create_if_free(wanted, scratch=True)
            if self._wide is not None:
                self.pages.spare = partial(self.less, self.pages.create)
                return self._wide
        if largest is not None and largest.pages >= least:
            return largest
        return self.pages.create(least, scratch=True)
