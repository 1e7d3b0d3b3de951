"""What is to be packed: buffers with known lifetimes."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sapwood.errors import MisuseError
from sapwood.units import Size, align_up


class Buffer(NamedTuple):
    """``size`` bytes that are in use in ``[lower, upper)``; times are any integers."""

    lower: int
    upper: int
    size: Size


def check_buffers(
    buffers: Iterable[Buffer], names: Iterable[object] | None = None
) -> None:
    """Raise `MisuseError` for the first buffer without a lifetime, or below 0 bytes.

    It is told by its name, or else by its number.
    """
    named = zip(itertools.count() if names is None else names, buffers, strict=False)
    for name, (lower, upper, size) in named:
        if lower >= upper:
            raise MisuseError(
                f"buffer {name} is alive in [{lower}, {upper}), which is empty. Give "
                "an upper above its lower"
            )
        if size < 0:
            raise MisuseError(f"buffer {name} has {size} bytes. Give a size from 0")


def check_count(name: str, value: int) -> None:
    """Raise `MisuseError` for what is named so and is no whole number from 1."""
    if value < 1:
        raise MisuseError(f"{name} is {value}. Give a whole number from 1")


def events(buffers: Iterable[Buffer]) -> list[tuple[int, bool, int]]:
    """Return when buffers with bytes end and begin: the time, which, and their number.

    They are in order; of those at one time, the ends come first.
    """
    return sorted(
        (time, begins, number)
        for number, (lower, upper, size) in enumerate(buffers)
        if size
        for time, begins in ((upper, False), (lower, True))
    )


def lower_bound(buffers: Sequence[Buffer], alignment: int = 1) -> Size:
    """Return a height in bytes that no plan can go below.

    At each time the buffers in use lie above each other. All begin at multiples of
    ``alignment``, so each but the topmost takes up its size rounded up to that. Raises
    `MisuseError` for impossible buffers, and alignments below 1.
    """
    check_buffers(buffers)
    check_count("alignment", alignment)
    live = bound = 0
    spare: list[tuple[int, int]] = []
    for time, begins, number in events(buffers):
        size = buffers[number].size
        taken = align_up(size, alignment)
        if not begins:
            live -= taken
            continue
        live += taken
        heapq.heappush(spare, (size - taken, number))
        while buffers[spare[0][1]].upper <= time:
            heapq.heappop(spare)
        bound = max(bound, live + spare[0][0])
    return Size(bound)


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """A buffer, by its number, that cannot lie at its offset.

    ``other`` is the number of one that is in use there at the same time; None where
    the offset is negative or not aligned.
    """

    buffer: int
    other: int | None
    text: str


def violations(
    buffers: Sequence[Buffer], offsets: Sequence[int], alignment: int = 1
) -> tuple[Violation, ...]:
    """Return what is wrong with the offsets of buffers; nothing if they are a plan.

    Of those that a buffer overlaps when it begins, one neighbour is named on each
    side. Raises `MisuseError` unless there is one offset for each buffer.
    """
    check_count("alignment", alignment)
    if len(buffers) != len(offsets):
        raise MisuseError(
            f"there are {len(offsets)} offsets for {len(buffers)} buffers. Give one "
            "for each"
        )
    misplaced = {
        number: f"buffer {number} lies at {offset}, no multiple of {alignment} from 0"
        for number, offset in enumerate(offsets)
        if buffers[number].size and (offset < 0 or offset % alignment)
    }
    first = [Violation(number, None, text) for number, text in misplaced.items()]
    return (*first, *_overlapping(buffers, offsets))


def _overlapping(buffers: Sequence[Buffer], offsets: Sequence[int]) -> list[Violation]:
    """Sweep over time; what is in use is kept in the order of its offsets.

    As long as those in use do not overlap, a new one can only do so with what begins
    just below or above it. One that does is left out, so that this stays true.
    """
    live: list[tuple[int, int]] = []
    left_out: set[int] = set()
    wrong = []
    for _, begins, number in events(buffers):
        entry = (offsets[number], number)
        at = bisect.bisect_left(live, entry)
        if not begins:
            if number not in left_out:
                del live[at]
            continue
        beside = [n for _, n in live[max(at - 1, 0) : at + 1]]
        found = [
            _overlap(number, n, buffers, offsets)
            for n in beside
            if offsets[n] < offsets[number] + buffers[number].size
            and offsets[number] < offsets[n] + buffers[n].size
        ]
        if found:
            wrong += found
            left_out.add(number)
        else:
            live.insert(at, entry)
    return wrong


def _overlap(
    number: int, other: int, buffers: Sequence[Buffer], offsets: Sequence[int]
) -> Violation:
    ours, theirs = (
        f"[{offsets[n]}, {offsets[n] + buffers[n].size})" for n in (number, other)
    )
    text = (
        f"buffer {number} at {ours} overlaps buffer {other} at {theirs} while both are "
        f"in use from {buffers[number].lower}"
    )
    return Violation(number, other, text)
