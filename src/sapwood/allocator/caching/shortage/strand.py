"""Why free memory cannot serve a request, in bytes by cause; and who holds the rest."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from sapwood.allocator.caching.picture import Frame, Picture, SegmentPicture
from sapwood.allocator.caching.shortage.what_if import Request, free_blocks, room
from sapwood.units import Size, size_text

__all__ = ["Holder", "Stranded", "holders", "stranded"]


_NONE = Size(0)


@dataclass(frozen=True, slots=True)
class Stranded:
    """Bytes that are not live and yet do not serve a request; no byte counts twice.

    Free blocks lie in ``other_pools``, on ``other_streams`` of the pool, in the
    ``other_class`` of small or large requests, or at home as ``remainders`` that are
    too small or may not be split. ``pending`` waits for other streams' work,
    ``rounding`` is what blocks have beyond their requests. ``unplaced``: there was
    room, but no addresses for it, or another process was faster.
    """

    other_pools: Size = _NONE
    other_streams: Size = _NONE
    other_class: Size = _NONE
    remainders: Size = _NONE
    pending: Size = _NONE
    rounding: Size = _NONE
    unplaced: Size = _NONE

    def __str__(self) -> str:
        causes = {cause.name: getattr(self, cause.name) for cause in fields(self)}
        return ", ".join(
            f"{size_text(size)} {_WORDS[cause]}"
            for cause, size in sorted(causes.items(), key=lambda item: -item[1])
            if size
        )


_WORDS = {
    "other_pools": "free in other pools",
    "other_streams": "free on other streams",
    "other_class": "free for the other size class",
    "remainders": "in pieces too small or not to be split",
    "pending": "waiting for other streams",
    "rounding": "lost to rounding",
    "unplaced": "without addresses, or taken meanwhile",
}


def stranded(picture: Picture, request: Request) -> Stranded:
    """Return by cause what does not serve ``request`` in ``picture``."""
    causes: Counter[str] = Counter()
    for segment, block in free_blocks(picture):
        causes[_cause(segment, request)] += block.size
    for segment in picture.segments:
        for block in segment.blocks:
            if block.state == "pending":
                causes["pending"] += block.size
            elif block.state == "allocated":
                causes["rounding"] += block.size - block.requested
    if room(picture) >= request.growth:
        causes["unplaced"] = room(picture)
    return Stranded(**{cause: Size(size) for cause, size in causes.items()})


def _cause(segment: SegmentPicture, request: Request) -> str:
    if segment.pool != request.pool:
        return "other_pools"
    if segment.stream != request.stream:
        return "other_streams"
    return "remainders" if segment.size_class == request.size_class else "other_class"


class Holder(NamedTuple):
    """Live blocks that one line of a program allocated; no frame where unknown."""

    frame: Frame | None
    size: Size
    blocks: int

    @property
    def where(self) -> str:
        """The line as text."""
        frame = self.frame
        return f"{frame.filename}:{frame.line} ({frame.name})" if frame else "unknown"

    def __str__(self) -> str:
        blocks = "1 block" if self.blocks == 1 else f"{self.blocks} blocks"
        return f"{self.where} {size_text(self.size)} in {blocks}"


def holders(picture: Picture) -> tuple[Holder, ...]:
    """Return who holds the live blocks, the most bytes first.

    A block belongs to the innermost line of its stack outside this library; those
    without a stack belong to one holder that is not known.
    """
    sizes: Counter[Frame | None] = Counter()
    numbers: Counter[Frame | None] = Counter()
    for segment in picture.segments:
        for block in segment.blocks:
            if block.state == "allocated":
                frame = _innermost(block.frames)
                sizes[frame] += block.size
                numbers[frame] += 1
    return tuple(
        Holder(frame, Size(size), numbers[frame]) for frame, size in sizes.most_common()
    )


_LIBRARY = str(Path(__file__).parents[2]) + os.sep


def _innermost(frames: tuple[Frame, ...]) -> Frame | None:
    users = (frame for frame in frames if not frame.filename.startswith(_LIBRARY))
    return next(users, frames[0] if frames else None)
