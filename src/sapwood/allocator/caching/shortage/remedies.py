"""What would have fitted, and why: each remedy is verified on a picture.

A `Remedy` is named only if `what_if.fits` says that the request is served in the
picture that it leads to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from sapwood.allocator.caching.picture import (
    DEFAULT_POOL,
    Picture,
    PoolId,
    SegmentPicture,
)
from sapwood.allocator.caching.shortage.what_if import (
    Request,
    completed,
    fits,
    free_blocks,
    one_stream,
    released,
    repaged,
    reserved,
    room,
)
from sapwood.driver.api import StreamHandle
from sapwood.units import Size, align_up, size_text

__all__ = [
    "AfterRelease",
    "AfterWork",
    "HigherLimit",
    "Remedy",
    "WithSetting",
    "remedies",
]


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
            name = f"({self.pool.capture}, {self.pool.user})"
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
    single = tuple(
        chain(
            _after_work(picture, request),
            _after_release(picture, request),
            _with_settings(picture, request),
            _higher_limit(picture, request),
        )
    )
    return single or tuple(_after_both(picture, request))


def _after_work(picture: Picture, request: Request) -> Iterator[Remedy]:
    if not _pending(picture):
        return
    everyone = tuple(sorted(_users(picture)))
    choices = [*(((stream,), False) for stream in everyone), (everyone, False)]
    for streams, captures in (*choices, (everyone, True)):
        after = completed(picture, frozenset(streams), captures=captures)
        if fits(after, request):
            yield AfterWork(streams, _freed(picture, after), captures)
            return


def _users(picture: Picture) -> set[StreamHandle]:
    return {
        user
        for segment in picture.segments
        for block in segment.blocks
        if block.state == "pending"
        for user in block.users
    }


def _freed(before: Picture, after: Picture) -> Size:
    return Size(_pending(before) - _pending(after))


def _pending(picture: Picture) -> int:
    return sum(
        block.size
        for segment in picture.segments
        for block in segment.blocks
        if block.state == "pending"
    )


def _after_release(picture: Picture, request: Request) -> Iterator[Remedy]:
    streams = sorted({s.stream for s in picture.segments if s.pool == DEFAULT_POOL})
    found = False
    for stream in streams:
        size = _gain(picture, request, DEFAULT_POOL, stream)
        if size:
            found = True
            yield AfterRelease(size, stream=stream)
    everything = 0 if found else _gain(picture, request, DEFAULT_POOL, None)
    if everything:
        yield AfterRelease(Size(everything))
    for pool in sorted({s.pool for s in picture.segments} - {DEFAULT_POOL}):
        size = Size(0) if pool == request.pool else _gain(picture, request, pool, None)
        if size:
            yield AfterRelease(size, pool=pool)


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
    return room(picture) + sum(b.size for s, b in free_blocks(picture) if chosen(s))


def _with_settings(picture: Picture, request: Request) -> Iterator[Remedy]:
    settings = request.settings
    shared = one_stream(picture, request.stream)
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
        yield WithSetting(
            "expandable_segments:True",
            f"the same blocks would hold {size_text(gained)} less",
        )


def _higher_limit(picture: Picture, request: Request) -> Iterator[Remedy]:
    limit = reserved(picture) + request.growth
    if limit > picture.total or picture.free < request.growth:
        return
    fraction = min(1.0, math.ceil(limit / picture.total * 10_000) / 10_000)
    yield HigherLimit(Size(limit), fraction)


def _after_both(picture: Picture, request: Request) -> Iterator[Remedy]:
    if not _pending(picture):
        return
    streams = frozenset(_users(picture))
    for captures in (False, True):
        done = completed(picture, streams, captures=captures)
        after = released(done, _is_everyones)
        size = _freed(picture, done)
        if fits(after, request):
            yield AfterWork(tuple(sorted(streams)), size, captures, release=True)
            return


def _is_everyones(segment: SegmentPicture) -> bool:
    """Whether its cache goes back when memory runs out: it is no private pool's."""
    return segment.pool == DEFAULT_POOL
