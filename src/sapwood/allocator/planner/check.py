"""Whether offsets are a plan: looked at anew, whatever made them.

This file shares nothing with what packs.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from sapwood.allocator.planner.buffers import Buffer, check_alignment
from sapwood.errors import MisuseError

__all__ = ["Violation", "violations"]


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
    check_alignment(alignment)
    if len(buffers) != len(offsets):
        raise MisuseError(
            f"there are {len(offsets)} offsets for {len(buffers)} buffers. Give one "
            "for each"
        )
    return (
        *_misplaced(buffers, offsets, alignment),
        *_overlapping(buffers, offsets),
    )


def _misplaced(
    buffers: Sequence[Buffer], offsets: Sequence[int], alignment: int
) -> list[Violation]:
    wrong = []
    for number, offset in enumerate(offsets):
        if buffers[number].size and (offset < 0 or offset % alignment):
            text = (
                f"buffer {number} lies at {offset}, no multiple of {alignment} from 0"
            )
            wrong.append(Violation(number, None, text))
    return wrong


def _overlapping(buffers: Sequence[Buffer], offsets: Sequence[int]) -> list[Violation]:
    """Sweep over time; what is in use is kept in the order of its offsets.

    As long as those in use do not overlap, a new one can only do so with what begins
    just below or above it. One that does is left out, so that this stays true.
    """
    events = []
    for number, buffer in enumerate(buffers):
        if buffer.size:
            events.append((buffer.upper, 0, number))
            events.append((buffer.lower, 1, number))
    live: list[tuple[int, int]] = []
    left_out: set[int] = set()
    wrong = []
    for _, begins, number in sorted(events):
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
