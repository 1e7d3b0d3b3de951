"""An out-of-memory error that helps: what was missing, where it is, what would help.

`shortage` makes a frozen value of a picture and a request; its text is made when it
is read.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from sapwood.allocator.caching.picture import Frame, Picture, SegmentPicture
from sapwood.allocator.caching.records.statistics import Place, largest_free
from sapwood.allocator.caching.shortage.remedies import (
    Remedy,
    Request,
    remedies,
    reserved,
    room,
)
from sapwood.errors import OutOfMemory
from sapwood.units import Size, count_text, size_text


def _lost(words: str) -> Any:
    return field(default=Size(0), metadata={"words": words})


@dataclass(frozen=True, slots=True)
class Stranded:
    """Bytes that are not live and yet do not serve a request; no byte counts twice.

    Free blocks lie in ``other_pools``, on ``other_streams`` of the pool, in the
    ``other_class`` of small or large requests, or at home as ``remainders`` that are
    too small or may not be split. ``pending`` waits for other streams' work,
    ``rounding`` is what blocks have beyond their requests. ``unplaced``: there was
    room, but no addresses for it, or another process was faster.
    """

    other_pools: Size = _lost("free in other pools")
    other_streams: Size = _lost("free on other streams")
    other_class: Size = _lost("free for the other size class")
    remainders: Size = _lost("in pieces too small or not to be split")
    pending: Size = _lost("waiting for other streams")
    rounding: Size = _lost("lost to rounding")
    unplaced: Size = _lost("without addresses, or taken meanwhile")

    def __str__(self) -> str:
        causes = [(getattr(self, each.name), each) for each in fields(self)]
        return ", ".join(
            f"{size_text(size)} {cause.metadata['words']}"
            for size, cause in sorted(causes, key=lambda each: -each[0])
            if size
        )


def stranded(picture: Picture, request: Request) -> Stranded:
    """Return by cause what does not serve ``request`` in ``picture``."""
    causes: Counter[str] = Counter()
    for segment, block in picture.blocks("free"):
        causes[_cause(segment, request)] += block.size
    for _, block in picture.blocks("allocated"):
        causes["rounding"] += block.size - block.requested
    causes["pending"] = picture.bytes("pending")
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
        blocks = count_text(self.blocks, "block")
        return f"{self.where} {size_text(self.size)} in {blocks}"


def holders(picture: Picture) -> tuple[Holder, ...]:
    """Return who holds the live blocks, the most bytes first.

    A block belongs to the innermost line of its stack outside this library; those
    without a stack belong to one holder that is not known.
    """
    sizes: Counter[Frame | None] = Counter()
    numbers: Counter[Frame | None] = Counter()
    for _, block in picture.blocks("allocated"):
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


_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a request could not be served, and what would have served it.

    ``total``, ``free`` and ``limit`` are the device's bytes and what may be taken of
    them; ``reserved`` is held from the driver, ``live`` and ``cached`` of it are
    allocated and free. ``largest`` are the largest free blocks, largest first.
    ``remedies`` are verified; where there are none, live memory must go. A
    ``rerun`` is of what is over: nobody can record its history now.
    """

    request: Request
    device: int
    total: Size
    free: Size
    limit: Size
    reserved: Size
    live: Size
    cached: Size
    largest: tuple[tuple[Place, Size], ...]
    stranded: Stranded
    holders: tuple[Holder, ...]
    remedies: tuple[Remedy, ...]
    rerun: bool = False

    def __str__(self) -> str:
        parts = (
            self._asked(),
            self._state(),
            self._places(),
            self._who(),
            self._help(),
        )
        return ". ".join(part for part in parts if part)

    def _asked(self) -> str:
        request = self.request
        return (
            f"asked for {size_text(request.size)} on stream {request.stream} of pool "
            f"{tuple(request.pool)}: a free block of {size_text(request.rounded)}, or "
            f"{size_text(request.growth)} from the driver"
        )

    def _state(self) -> str:
        return (
            f"Device {self.device} has {size_text(self.free)} free of "
            f"{size_text(self.total)}; {size_text(self.reserved)} are held here of "
            f"{size_text(self.limit)} allowed: {size_text(self.live)} live, "
            f"{size_text(self.cached)} cached"
        )

    def _places(self) -> str:
        largest = ", ".join(
            f"{size_text(size)} ({kind}, stream {stream}, pool {tuple(pool)})"
            for (pool, kind, stream), size in self.largest[:_SHOWN]
        )
        lost = str(self.stranded)
        parts = (largest and f"Largest free: {largest}", lost and f"Not usable: {lost}")
        return ". ".join(part for part in parts if part)

    def _who(self) -> str:
        known = [holder for holder in self.holders if holder.frame][:_SHOWN]
        if known:
            return f"Held by {', '.join(str(holder) for holder in known)}"
        asks = self.live and not self.rerun
        return "record_history shows who holds it" if asks else ""

    def _help(self) -> str:
        if self.remedies:
            helps = "; it ".join(str(remedy) for remedy in self.remedies)
            late = " Do that before a capture begins" if self.request.capturing else ""
            return f"It {helps}.{late}"
        if self.stranded.unplaced:
            return (
                "There was room, but no addresses for it, or a budget or another "
                "process was before: lower expandable_segments_reserve, or try again"
            )
        if self.request.growth > self.limit:
            return (
                f"Does not fit: no more than {size_text(self.limit)} may be held. Ask "
                "for less at once"
            )
        missing = self.request.growth - min(self.free, self.limit - self.reserved)
        return (
            f"Does not fit: {size_text(self.live)} are live, the limit is "
            f"{size_text(self.limit)}. Free live memory, at best {size_text(missing)} "
            "in one piece, or ask for less"
        )


def shortage(picture: Picture, request: Request) -> Shortage:
    """Return why ``request`` is not served in ``picture``, and what would help."""
    largest = largest_free(picture)
    return Shortage(
        request=request,
        device=picture.device,
        total=picture.total,
        free=picture.free,
        limit=picture.limit,
        reserved=reserved(picture),
        live=picture.bytes("allocated"),
        cached=picture.bytes("free"),
        largest=tuple(sorted(largest.items(), key=lambda item: -item[1])),
        stranded=stranded(picture, request),
        holders=holders(picture),
        remedies=remedies(picture, request),
    )


def out_of_memory(picture: Picture, request: Request) -> OutOfMemory:
    """Return the error of a ``request`` that is not served in ``picture``."""
    missing = shortage(picture, request)
    return OutOfMemory(
        "malloc",
        asked=request.size,
        free=picture.free,
        largest=max((size for _, size in missing.largest), default=0),
        holders=tuple((holder.where, holder.size) for holder in missing.holders),
        shortage=missing,
    )
