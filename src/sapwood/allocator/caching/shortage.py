"""An out-of-memory error that helps: what was missing, where it is, what would help.

`shortage` makes a frozen value of a picture and a request; its text is made when it
is read. A `Remedy` is named only if `fits` says that the request is served in the
picture that it leads to.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from sapwood.allocator.caching.picture import (
    DEFAULT_POOL,
    BlockPicture,
    Frame,
    Picture,
    PoolId,
    SegmentPicture,
    SizeClass,
)
from sapwood.allocator.caching.records.statistics import Place, largest_free
from sapwood.allocator.caching.settings import DEFAULT, Settings
from sapwood.driver.api import StreamHandle
from sapwood.errors import OutOfMemory
from sapwood.units import Addr, Size, align_up, count_text, size_text

Extent = tuple[Addr, Size]

_SMALL_EXTENT = Size(2 << 20)


@dataclass(frozen=True, slots=True)
class Request:
    """What could not be served.

    ``size`` was asked for; a block of ``rounded`` bytes serves it, or new memory:
    ``growth`` bytes from the driver, which come in whole pages of ``page`` bytes.
    ``settings`` are those it was tried under; while ``capturing``, nothing is given
    back, and no stream is waited for.
    """

    size: Size
    rounded: Size
    growth: Size
    page: Size
    stream: StreamHandle
    pool: PoolId
    size_class: SizeClass
    settings: Settings = DEFAULT
    capturing: bool = False


def reserved(picture: Picture) -> Size:
    """Return the bytes that the allocator holds from the driver."""
    return Size(sum(size for s in picture.segments for _, size in s.extents))


def room(picture: Picture) -> Size:
    """Return the bytes that the driver has and the limit allows."""
    allowed = picture.limit - reserved(picture)
    return Size(max(0, min(picture.free, allowed)))


def fits(picture: Picture, request: Request) -> bool:
    """Whether a free block or new memory can serve ``request``."""
    if room(picture) >= request.growth:
        return True
    whole = {pool.id for pool in picture.pools if pool.no_split}
    home = request.pool, request.size_class, request.stream
    return any(
        _place(segment) == home
        and _may_serve(segment, block, request)
        and (segment.pool not in whole or len(segment.blocks) == 1)
        for segment, block in picture.blocks("free")
    )


def _may_serve(segment: SegmentPicture, block: BlockPicture, request: Request) -> bool:
    """Whether it is large enough, and the rules for undivided blocks allow it."""
    size, most = block.size, request.settings.max_split_size
    if size < request.rounded:
        return False
    if most is None or size <= most or segment.expandable:
        return True
    allowed = request.rounded + request.settings.max_non_split_rounding
    return request.rounded > most and size < allowed


def completed(
    picture: Picture, streams: frozenset[StreamHandle], *, captures: bool = False
) -> Picture:
    """Return the picture after the work of ``streams``: what only they used is free.

    With ``captures``, also what waits for a capture to end: it names no stream.
    """

    def after(block: BlockPicture) -> BlockPicture:
        waits = not streams.issuperset(block.users) if block.users else not captures
        if block.state != "pending" or waits:
            return block
        return replace(block, state="free", requested=Size(0), users=(), frames=())

    return _each_segment(
        picture, lambda s: replace(s, blocks=merged(map(after, s.blocks)))
    )


def merged(blocks: Iterable[BlockPicture]) -> tuple[BlockPicture, ...]:
    """Return ``blocks`` with free neighbours joined, and unmapped ones."""
    joined: list[BlockPicture] = []
    for block in blocks:
        last = joined[-1] if joined else None
        if last and last.state == block.state and block.state in {"free", "unmapped"}:
            joined[-1] = replace(last, size=Size(last.size + block.size))
        else:
            joined.append(block)
    return tuple(joined)


def released(
    picture: Picture, chosen: Callable[[SegmentPicture], bool] = lambda _: True
) -> Picture:
    """Return the picture after what is free in the ``chosen`` segments went back.

    Of an expandable segment, each piece of memory that is free as a whole; another
    goes as a whole, or stays.
    """
    after = _each_segment(picture, lambda s: _emptied(s) if chosen(s) else s)
    gone = reserved(picture) - reserved(after)
    held = tuple(segment for segment in after.segments if segment.extents)
    return replace(after, segments=held, free=Size(after.free + gone))


def _emptied(segment: SegmentPicture) -> SegmentPicture:
    if not segment.expandable and len(segment.blocks) > 1:
        return segment
    extents = sorted(segment.extents)
    ends = [at + size for at, size in extents]
    gone: set[Extent] = set()
    pieces: list[BlockPicture] = []
    for block in segment.blocks:
        first = bisect_left(extents, block.address, key=itemgetter(0))
        last = bisect_right(ends, block.address + block.size, first)
        inside = extents[first:last] if block.state == "free" else []
        pieces += _cut(block, inside)
        gone.update(inside)
    kept = tuple(extent for extent in segment.extents if extent not in gone)
    return replace(segment, extents=kept, blocks=merged(pieces))


def _cut(block: BlockPicture, gone: list[Extent]) -> Iterator[BlockPicture]:
    """Divide a block where pieces of its memory have gone."""
    at, end = block.address, block.address + block.size
    for start, size in gone:
        if at < start:
            yield replace(block, address=at, size=Size(start - at))
        yield BlockPicture(start, size, Size(0), "unmapped")
        at = Addr(start + size)
    if at < end:
        yield replace(block, address=at, size=Size(end - at))


def repaged(picture: Picture, request: Request) -> Picture:
    """Return the picture with each place's segments laid out in one expandable one.

    The blocks keep their order, as if they had been allocated so, one after the
    other, each growing its segment by the pages that it lacked.
    """
    places = groupby(sorted(picture.segments, key=_place), key=_place)
    laid = tuple(_laid_out(tuple(segments), request) for _, segments in places)
    after = replace(picture, segments=laid)
    more = reserved(after) - reserved(picture)
    return replace(after, free=Size(after.free - more))


def _place(segment: SegmentPicture) -> tuple[PoolId, SizeClass, StreamHandle]:
    return segment.pool, segment.size_class, segment.stream


def _laid_out(segments: tuple[SegmentPicture, ...], request: Request) -> SegmentPicture:
    start, first = segments[0].address, segments[0]
    end = at = int(start)
    most = request.settings.large_segment_size
    most = most if first.size_class == "large" else _SMALL_EXTENT
    blocks: list[BlockPicture] = []
    extents: list[Extent] = []
    for block in (block for segment in segments for block in segment.blocks):
        if block.state == "unmapped":
            continue
        blocks.append(replace(block, address=Addr(at)))
        at += block.size
        while end < at:
            size = min(align_up(at - end, request.page), max(most, request.page))
            extents.append((Addr(end), Size(size)))
            end += size
    if at < end:
        blocks.append(BlockPicture(Addr(at), Size(end - at), Size(0), "free"))
    return replace(
        first,
        size=Size(end - start),
        expandable=True,
        blocks=merged(blocks),
        extents=tuple(extents),
    )


def _each_segment(
    picture: Picture, change: Callable[[SegmentPicture], SegmentPicture]
) -> Picture:
    return replace(picture, segments=tuple(change(s) for s in picture.segments))


@dataclass(frozen=True, slots=True)
class AfterWork:
    """Fits when ``streams`` have done the work that still uses ``size`` bytes.

    ``captures``: and the captures under way have ended. ``release``: and what is free
    then is given back.
    """

    streams: tuple[StreamHandle, ...]
    size: Size
    captures: bool = False
    release: bool = False

    def __str__(self) -> str:
        names = ", ".join(str(stream) for stream in self.streams)
        waits = [f"pending frees of stream {names} complete"] if names else []
        ends = ["the captures under way end"] if self.captures else []
        then = ", then call empty_cache()" if self.release else ""
        return (
            f"fits when {' and '.join(waits + ends)} ({size_text(self.size)}): "
            f"synchronize{then}"
        )


@dataclass(frozen=True, slots=True)
class AfterRelease:
    """Fits after ``size`` bytes of cache are given back to the driver.

    Of one ``stream``, of one private ``pool``, or where both are None of all streams.
    """

    size: Size
    stream: StreamHandle | None = None
    pool: PoolId | None = None

    def __str__(self) -> str:
        size = size_text(self.size)
        if self.pool is not None:
            name = tuple(self.pool)
            return f"fits after {size} cached in pool {name} are released: release_pool"
        where = "" if self.stream is None else f" on stream {self.stream}"
        return f"fits after {size} cached{where} are released: empty_cache()"


@dataclass(frozen=True, slots=True)
class WithSetting:
    """Fits with one setting changed; ``because`` says what that makes usable."""

    setting: str
    because: str

    def __str__(self) -> str:
        return f"fits with {self.setting}: {self.because}"


@dataclass(frozen=True, slots=True)
class HigherLimit:
    """Fits where the allocator may hold ``limit`` bytes, ``fraction`` of the device."""

    limit: Size
    fraction: float

    def __str__(self) -> str:
        return (
            f"fits with a limit of {size_text(self.limit)}: set "
            f"per_process_memory_fraction to {self.fraction:.4f} or more"
        )


Remedy = AfterWork | AfterRelease | WithSetting | HigherLimit


def remedies(picture: Picture, request: Request) -> tuple[Remedy, ...]:
    """Return what would have served ``request``, the least change first.

    Empty where it fits as it is, or where only live memory could make room.
    """
    if fits(picture, request):
        return ()
    single = (
        *_after_work(picture, request),
        *_after_release(picture, request),
        *_with_settings(picture, request),
        *_higher_limit(picture, request),
    )
    return single or tuple(_after_work(picture, request, release=True))


def _after_work(
    picture: Picture, request: Request, *, release: bool = False
) -> Iterator[Remedy]:
    pending = list(picture.blocks("pending"))
    everyone = tuple(sorted({user for _, block in pending for user in block.users}))
    choices = [(everyone, False), (everyone, True)]
    if not release:
        choices = [*(((stream,), False) for stream in everyone), *choices]
    for streams, captures in choices if pending else ():
        done = completed(picture, frozenset(streams), captures=captures)
        after = released(done, _is_everyones) if release else done
        if fits(after, request):
            size = picture.bytes("pending") - done.bytes("pending")
            yield AfterWork(streams, Size(size), captures, release)
            return


def _after_release(picture: Picture, request: Request) -> list[Remedy]:
    def after(places: Iterable[tuple[PoolId, StreamHandle | None]]) -> list[Remedy]:
        return [
            AfterRelease(size, stream, None if pool == DEFAULT_POOL else pool)
            for pool, stream in places
            if (size := _gain(picture, request, pool, stream))
        ]

    segments = picture.segments
    streams = sorted({s.stream for s in segments if s.pool == DEFAULT_POOL})
    pools = sorted({s.pool for s in segments} - {DEFAULT_POOL, request.pool})
    one = after((DEFAULT_POOL, stream) for stream in streams)
    return (one or after([(DEFAULT_POOL, None)])) + after((p, None) for p in pools)


def _gain(
    picture: Picture, request: Request, pool: PoolId, stream: StreamHandle | None
) -> Size:
    """Return what giving back that cache frees; 0 if that is not enough."""

    def chosen(segment: SegmentPicture) -> bool:
        return segment.pool == pool and stream in {None, segment.stream}

    if _most_room(picture, chosen) < request.growth:
        return Size(0)
    after = released(picture, chosen)
    if not fits(after, request):
        return Size(0)
    return Size(reserved(picture) - reserved(after))


def _most_room(picture: Picture, chosen: Callable[[SegmentPicture], bool]) -> int:
    """Return what room there could be at best, were all free bytes given back."""
    return room(picture) + sum(b.size for s, b in picture.blocks("free") if chosen(s))


def _with_settings(picture: Picture, request: Request) -> Iterator[Remedy]:
    settings = request.settings
    shared = _each_segment(picture, lambda s: replace(s, stream=request.stream))
    alone = settings.cross_stream_reuse or request.capturing
    if not alone and fits(shared, request):
        yield WithSetting(
            "cross_stream_reuse:True", "a free block of another stream is large enough"
        )
    undivided = replace(request, settings=settings.replace(max_split_size=None))
    if settings.max_split_size is not None and fits(picture, undivided):
        yield WithSetting(
            "max_split_size:None", "a larger free block is there, but may not be split"
        )
    if not settings.expandable_segments:
        yield from _with_expandable_segments(picture, request)


def _with_expandable_segments(picture: Picture, request: Request) -> Iterator[Remedy]:
    growth = Size(align_up(request.rounded, request.page))
    if _most_room(picture, _is_everyones) < growth:
        return
    laid = repaged(picture, request)
    anew = replace(request, growth=growth)
    possible = laid.free >= 0 and reserved(laid) <= laid.limit
    after = released(laid, _is_everyones)
    if possible and fits(after, anew):
        gained = reserved(picture) - reserved(after)
        because = f"the same blocks would hold {size_text(gained)} less"
        yield WithSetting("expandable_segments:True", because)


def _higher_limit(picture: Picture, request: Request) -> Iterator[Remedy]:
    limit = reserved(picture) + request.growth
    if limit > picture.total or picture.free < request.growth:
        return
    fraction = min(1.0, math.ceil(limit / picture.total * 10_000) / 10_000)
    yield HigherLimit(Size(limit), fraction)


def _is_everyones(segment: SegmentPicture) -> bool:
    """Whether its cache goes back when memory runs out: it is no private pool's."""
    return segment.pool == DEFAULT_POOL


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
        causes = [(getattr(self, f.name), f.metadata["words"]) for f in fields(self)]
        causes.sort(key=lambda each: -each[0])
        return ", ".join(f"{size_text(size)} {words}" for size, words in causes if size)


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


_LIBRARY = str(Path(__file__).parents[1]) + os.sep


def holders(picture: Picture) -> tuple[Holder, ...]:
    """Return who holds the live blocks, the most bytes first.

    A block belongs to the innermost line of its stack outside this library; those
    without a stack belong to one holder that is not known.
    """
    sizes: Counter[Frame | None] = Counter()
    numbers: Counter[Frame | None] = Counter()
    for _, block in picture.blocks("allocated"):
        users = (f for f in block.frames if not f.filename.startswith(_LIBRARY))
        frame = next(users, block.frames[0] if block.frames else None)
        sizes[frame] += block.size
        numbers[frame] += 1
    return tuple(
        Holder(frame, Size(size), numbers[frame]) for frame, size in sizes.most_common()
    )


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
        about = self._asked(), self._state(), self._places(), self._who(), self._help()
        return ". ".join(filter(None, about))

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
        return ". ".join(filter(None, parts))

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
