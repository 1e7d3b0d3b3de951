"""Extents to back the pages of a range with: such as there are, and such as are made.

What is made and then not needed is given back; so it is if anything fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sapwood.driver.release import Release
from sapwood.errors import DriverError
from sapwood.memory.fold import Stretch, best_fold
from sapwood.memory.pages import Extent, Pages


def folded(
    pages: Pages,
    found: Sequence[Stretch],
    scratch: Sequence[Extent],
    outputs: Sequence[Extent],
    largest: int | None = None,
) -> tuple[dict[int, Extent], list[Extent]]:
    """Return which extents to map at which pages, and those that were made.

    ``scratch`` and ``outputs`` are those that there are; ``largest`` as in `fold`.
    """
    made: list[Extent] = []
    try:
        while True:
            known = [*scratch, *outputs]
            sizes = [e.pages for e in scratch], [e.pages for e in outputs]
            plan = best_fold(found, *sizes, largest)
            for count, output in plan.made:
                made.append(pages.create(count, scratch=not output))
                known.append(made[-1])
            if all(e in pages.extents for e in known):
                return {p.first: known[p.extent] for p in plan.pieces}, made
            # Making them has evicted those who kept others.
            left = [e for e in known if e in pages.extents]
            scratch = [e for e in left if e.scratch]
            outputs = [e for e in left if not e.scratch]
    except DriverError:
        release_unused(pages, made)
        raise


def release_unused(pages: Pages, extents: Iterable[Extent]) -> None:
    """Give back those that no range maps."""
    with Release() as release:
        for extent in extents:
            if not extent.ranges:
                release(pages.release, extent)
