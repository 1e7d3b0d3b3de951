"""Pictures of what could be: pending blocks completed, caches given back.

Each function returns a new `Picture`; `fits` says whether a request could be served
in one. An out-of-memory text claims only what holds in such a picture.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from sapwood.allocator.caching.picture import (
    BlockPicture,
    Picture,
    PoolId,
    SegmentPicture,
    SizeClass,
)
from sapwood.allocator.caching.settings import DEFAULT, Settings
from sapwood.driver.api import StreamHandle
from sapwood.units import Addr, Size, align_up

__all__ = [
    "Request",
    "completed",
    "fits",
    "free_blocks",
    "merged",
    "one_stream",
    "released",
    "repaged",
    "reserved",
    "room",
]

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


def free_blocks(picture: Picture) -> Iterator[tuple[SegmentPicture, BlockPicture]]:
    """Iterate over the free mapped blocks, with the segment of each."""
    for segment in picture.segments:
        for block in segment.blocks:
            if block.state == "free":
                yield segment, block


def fits(picture: Picture, request: Request) -> bool:
    """Whether a free block or new memory can serve ``request``."""
    if room(picture) >= request.growth:
        return True
    whole = {pool.id for pool in picture.pools if pool.no_split}
    return any(
        _is_at_home(segment, request)
        and _may_serve(segment, block, request)
        and (segment.pool not in whole or len(segment.blocks) == 1)
        for segment, block in free_blocks(picture)
    )


def _is_at_home(segment: SegmentPicture, request: Request) -> bool:
    return (
        segment.pool == request.pool
        and segment.stream == request.stream
        and segment.size_class == request.size_class
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
        picture,
        lambda segment: replace(
            segment, blocks=merged(after(block) for block in segment.blocks)
        ),
    )


def merged(blocks: Iterator[BlockPicture]) -> tuple[BlockPicture, ...]:
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
    after = _each_segment(
        picture, lambda segment: _emptied(segment) if chosen(segment) else segment
    )
    gone = reserved(picture) - reserved(after)
    held = tuple(segment for segment in after.segments if segment.extents)
    return replace(after, segments=held, free=Size(after.free + gone))


def _emptied(segment: SegmentPicture) -> SegmentPicture:
    if not segment.expandable and len(segment.blocks) > 1:
        return segment
    starts = [block.address for block in segment.blocks]
    gone: dict[Addr, list[Extent]] = {}
    kept: list[Extent] = []
    for extent in segment.extents:
        block = segment.blocks[bisect(starts, extent[0]) - 1]
        whole = extent[0] + extent[1] <= block.address + block.size
        if whole and block.state == "free":
            gone.setdefault(block.address, []).append(extent)
        else:
            kept.append(extent)
    pieces = (
        piece
        for block in segment.blocks
        for piece in _cut(block, gone.get(block.address, []))
    )
    return replace(segment, extents=tuple(kept), blocks=merged(pieces))


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


def one_stream(picture: Picture, stream: StreamHandle) -> Picture:
    """Return the picture in which every free block may serve ``stream``."""
    return _each_segment(picture, lambda segment: replace(segment, stream=stream))


def repaged(picture: Picture, request: Request) -> Picture:
    """Return the picture with each place's segments laid out in one expandable one.

    The blocks keep their order, as if they had been allocated so, one after the
    other, each growing its segment by the pages that it lacked.
    """
    ordered = sorted(picture.segments, key=_place)
    laid = tuple(
        _laid_out(tuple(segments), request)
        for _, segments in groupby(ordered, key=_place)
    )
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
        blocks=merged(iter(blocks)),
        extents=tuple(extents),
    )


def _each_segment(
    picture: Picture, change: Callable[[SegmentPicture], SegmentPicture]
) -> Picture:
    return replace(picture, segments=tuple(change(s) for s in picture.segments))
