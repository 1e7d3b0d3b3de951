"""An out-of-memory error that helps: what was missing, where it is, what would help.

`shortage` makes a frozen value of a picture and a request; its text is made when it
is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from sapwood.allocator.caching.picture import Picture
from sapwood.allocator.caching.records.statistics import Place, largest_free
from sapwood.allocator.caching.shortage.remedies import Remedy, remedies
from sapwood.allocator.caching.shortage.strand import (
    Holder,
    Stranded,
    holders,
    stranded,
)
from sapwood.allocator.caching.shortage.what_if import Request, reserved
from sapwood.errors import OutOfMemory
from sapwood.units import Size, size_text

__all__ = ["Shortage", "out_of_memory", "shortage"]

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
        pool = f"({request.pool.capture}, {request.pool.user})"
        return (
            f"asked for {size_text(request.size)} on stream {request.stream} of pool "
            f"{pool}: a free block of {size_text(request.rounded)}, or "
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
            f"{size_text(size)} ({kind}, stream {stream}, pool ({pool.capture}, "
            f"{pool.user}))"
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
    blocks = [block for segment in picture.segments for block in segment.blocks]
    return Shortage(
        request=request,
        device=picture.device,
        total=picture.total,
        free=picture.free,
        limit=picture.limit,
        reserved=reserved(picture),
        live=Size(sum(b.size for b in blocks if b.state == "allocated")),
        cached=Size(sum(b.size for b in blocks if b.state == "free")),
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
