"""How runs of pages in a range are covered by physical extents. Pure.

An extent can only be mapped as a whole, and here only once in a range. So extents are
powers of two: what a large recording left behind serves a small one as exactly as
the sizes allow, and the other way round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

__all__ = [
    "cover",
    "grain",
    "power_above",
    "power_below",
    "runs",
    "stretch",
    "touching",
]

PIECES: Final = 16
"""About how many extents a large run is made of: a sixteenth of it, at the most,
cannot serve a smaller recording; sixteen handles still map in a fraction of a
millisecond on an H200."""


def runs(pages: Collection[int]) -> list[tuple[int, int]]:
    """Return ``(first, count)`` of each maximal run of adjacent page numbers."""
    return touching((page, 1) for page in sorted(pages))


def touching(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans ``(first, count)``, given in order, those that touch as one."""
    found: list[tuple[int, int]] = []
    for first, count in spans:
        if found and found[-1][0] + found[-1][1] == first:
            found[-1] = (found[-1][0], found[-1][1] + count)
        else:
            found.append((first, count))
    return found


def grain(total: int) -> int:
    """Return the largest extent, in pages, to create for ``total`` pages."""
    return power_below(max(1, total // PIECES))


def cover(
    lengths: Iterable[int], available: Mapping[int, int], largest: int
) -> list[list[tuple[int, bool]]]:
    """Cover each run with extents: ``(pages, exists)`` in address order.

    ``available`` counts existing extents by size, a power of two in pages; each is
    used at most once. New ones are at most ``largest`` pages. Taking the largest
    that fits is optimal, as every size divides every larger one.
    """
    left = Counter(available)
    sizes = sorted(left, reverse=True)
    return [_cover_run(length, left, sizes, largest) for length in lengths]


def stretch(length: int, available: Mapping[int, int]) -> int:
    """Return how long to make a run of at least ``length`` pages.

    Longer, where that lets existing extents cover it that would else leave a rest
    for new pages: mapping more of what exists costs nothing.
    """
    left = Counter(available)
    pieces = _cover_run(length, left, sorted(left, reverse=True), length)
    rest = sum(size for size, exists in pieces if not exists)
    # What is left is larger than the rest, or would have been taken.
    spare = [size for size, count in left.items() if count]
    return length - rest + min(spare) if rest and spare else length


def _cover_run(
    length: int, left: Counter[int], sizes: Sequence[int], largest: int
) -> list[tuple[int, bool]]:
    pieces: list[tuple[int, bool]] = []
    for size in sizes:
        count = min(left[size], length // size)
        left[size] -= count
        length -= count * size
        pieces += [(size, True)] * count
    while length:
        size = min(power_below(length), largest)
        pieces.append((size, False))
        length -= size
    return pieces


def power_below(number: int) -> int:
    """Return the largest power of two that is at most ``number``, which is positive."""
    return 1 << (number.bit_length() - 1)


def power_above(number: int) -> int:
    """Return the smallest power of two that is at least a positive ``number``."""
    return 1 << (number - 1).bit_length()
