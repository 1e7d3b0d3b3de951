"""What no device can run, whatever it is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import add

from sapwood.driver.api import MOST_COPIES, CopiesOp, CopyOp, Op, SetOp
from sapwood.driver.results import Refusal, invalid_value
from sapwood.units import Addr, Size, hex_address, size_text

Spans = Sequence[tuple[int, ...]]


def check_pages(page: Size, **values: int) -> None:
    """Refuse sizes and addresses, by name, that are no multiples of a page."""
    for what, value in values.items():
        if value < 0 or value % page or (what == "size" and not value):
            raise invalid_value(
                f"{what} {value:#_x} is not a positive multiple of the page: align "
                f"it to {size_text(page)}"
            )


def tiles(
    mappings: Container[Addr], end_of: Callable[[Addr], int], lo: Addr, size: Size
) -> list[Addr]:
    """Return where the mappings begin that together are exactly an interval.

    Refuse one that is not whole mappings; ``end_of`` gives the end of one.
    """
    found: list[Addr] = []
    at, end = lo, lo + size
    while at < end and at in mappings:
        found.append(at)
        at = Addr(end_of(at))
    if at != end or size <= 0:
        raise invalid_value(
            f"{size_text(size)} at {hex_address(lo)} are not whole mappings: "
            f"{hex_address(at)} is unmapped, or inside a mapping"
        )
    return found


def check_op(op: Op) -> None:
    """Refuse an op that can never run."""
    match op:
        case CopyOp(dst, src, size) | CopiesOp((dst,), (src,), (size,)):
            if size < 0 or abs(dst - src) < size:
                raise invalid_value(
                    f"cannot copy {size} bytes from {hex_address(src)} to "
                    f"{hex_address(dst)}: copied intervals may not overlap"
                )
        case CopiesOp(dsts, srcs, sizes):
            _check_copies(dsts, srcs, sizes)
        case SetOp(_, value, size) if size < 0 or not 0 <= value <= 255:
            raise invalid_value(
                f"cannot set {size} bytes to {value}: a byte is 0 to 255"
            )


def _check_copies(
    dsts: tuple[Addr, ...], srcs: tuple[Addr, ...], sizes: tuple[Size, ...]
) -> None:
    count = len(sizes)
    if not 1 <= count <= MOST_COPIES or not len(dsts) == len(srcs) == count:
        raise invalid_value(
            f"cannot copy {count} sizes from {len(srcs)} addresses to {len(dsts)}: one "
            f"op makes 1 to {MOST_COPIES} copies, each with an address of either kind"
        )
    if min(sizes) < 0:
        raise invalid_value(f"cannot copy {min(sizes)} bytes: a size is 0 or more")
    written = _written(dsts, sizes)
    if not written:
        return
    first, last = written[0][0], written[-1][1]
    ends = map(add, srcs, sizes)
    read = [
        (lo, hi)
        for lo, hi in zip(srcs, ends, strict=True)
        if lo < last and first < hi > lo
    ]
    if read and _meets(written, min(read)[0], max(hi for _, hi in read)):
        for lo, hi in read:
            if _meets(written, lo, hi):
                raise _clash(lo)


@lru_cache(maxsize=32)  # an op that is aimed anew mostly writes where it did
def _written(dsts: tuple[Addr, ...], sizes: tuple[Size, ...]) -> Spans:
    """Return the intervals that are written, by address; refuse some that overlap."""
    spans = zip(dsts, map(add, dsts, sizes), strict=True)
    written = sorted(span for span in spans if span[0] < span[1])
    for (_, end), (start, _) in pairwise(written):
        if start < end:
            raise _clash(start)
    return written


def _meets(written: Spans, lo: int, hi: int) -> bool:
    """Return whether ``[lo, hi)`` shares a byte with intervals, which share none."""
    before = bisect_left(written, (hi,))  # so many begin below its end
    return before > 0 and written[before - 1][1] > lo


def _clash(address: int) -> Refusal:
    return invalid_value(
        f"cannot copy at once what depends on an order: one copy writes at "
        f"{hex_address(address)} what another reads or writes. Make an op of each"
    )
