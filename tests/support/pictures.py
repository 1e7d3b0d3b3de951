"""Pictures of allocators that never were, for laws about pictures."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import get_args

from hypothesis import strategies as st

from sapwood.allocator.caching.picture import (
    DEFAULT_POOL,
    Action,
    BlockPicture,
    BlockState,
    Entry,
    Frame,
    Picture,
    PoolId,
    PoolPicture,
    SegmentPicture,
)
from sapwood.allocator.caching.settings import DEFAULT, Settings
from sapwood.allocator.caching.shortage import merged
from sapwood.driver.api import StreamHandle
from sapwood.units import Addr, Size

__all__ = ["entries", "pictures"]

_GRAIN = 512
_MIB = 1 << 20
_PAGE = 2 * _MIB
_BASE = 0x7000_0000_0000

_streams = st.integers(0, 3).map(StreamHandle)
_pools = st.sampled_from([DEFAULT_POOL, PoolId(1, 0), PoolId(0, 2)])
_frames = st.lists(
    st.builds(
        Frame, st.sampled_from(["a.py", "b.py"]), st.integers(1, 9), st.just("f")
    ),
    max_size=2,
).map(tuple)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    """Draw one event."""
    return Entry(
        action=draw(st.sampled_from(get_args(Action))),
        address=Addr(draw(st.integers(0, 1 << 47))),
        size=Size(draw(st.integers(0, 1 << 40))),
        stream=draw(_streams),
        time_us=draw(st.integers(0, 1 << 50)),
        pool=draw(_pools),
        frames=draw(_frames),
        annotation=draw(st.text(max_size=5)),
    )


@st.composite
def pictures(draw: st.DrawFn, settings: Settings = DEFAULT) -> Picture:
    """Draw a picture that keeps the laws: blocks tile segments, free ones are merged.

    Segments are a few MiB, of either kind, in pages of 2 MiB.
    """
    number = draw(st.integers(0, 4))
    segments = tuple(draw(_segments(Addr(_BASE + (at << 36)))) for at in range(number))
    held = sum(size for segment in segments for _, size in segment.extents)
    free = draw(st.integers(0, 16)) * _MIB
    total = held + free + draw(st.integers(0, 16)) * _MIB
    return Picture(
        device=draw(st.integers(0, 2)),
        total=Size(total),
        free=Size(free),
        limit=Size(draw(st.integers(held, total))),
        segments=segments,
        pools=tuple(
            PoolPicture(pool, 1) for pool in sorted({s.pool for s in segments})
        ),
        settings=settings.plain(),
        history=tuple(draw(st.lists(entries(), max_size=4))),
    )


@st.composite
def _segments(draw: st.DrawFn, address: Addr) -> SegmentPicture:
    pages = draw(st.integers(1, 6))
    expandable = draw(st.booleans())
    unmapped = draw(st.sets(st.integers(0, pages - 1))) if expandable else set()
    if len(unmapped) == pages:
        unmapped = set()
    extents = [(Addr(address + page * _PAGE), Size(_PAGE)) for page in range(pages)]
    kept = tuple(extent for page, extent in enumerate(extents) if page not in unmapped)
    size = Size(pages * _PAGE)
    empty = SegmentPicture(
        address=address,
        size=size,
        stream=draw(_streams),
        size_class=draw(st.sampled_from(("small", "large"))),
        pool=draw(_pools),
        expandable=expandable,
        blocks=(),
        extents=kept if draw(st.booleans()) or unmapped else ((address, size),),
        frames=draw(_frames),
    )
    blocks: list[BlockPicture] = []
    for start, end, mapped in _runs(address, pages, unmapped):
        if mapped:
            blocks += _tiles(draw, empty, start, end)
        else:
            blocks.append(BlockPicture(start, Size(end - start), Size(0), "unmapped"))
    return replace(empty, blocks=merged(iter(blocks)))


def _runs(start: Addr, pages: int, unmapped: set[int]) -> list[tuple[Addr, Addr, bool]]:
    """Return the longest runs of pages that are all mapped, or all not."""
    runs: list[tuple[Addr, Addr, bool]] = []
    for page in range(pages):
        at, mapped = Addr(start + page * _PAGE), page not in unmapped
        if runs and runs[-1][2] == mapped:
            runs[-1] = (runs[-1][0], Addr(at + _PAGE), mapped)
        else:
            runs.append((at, Addr(at + _PAGE), mapped))
    return runs


def _tiles(
    draw: st.DrawFn, segment: SegmentPicture, start: Addr, end: Addr
) -> list[BlockPicture]:
    grains = (end - start) // _GRAIN
    cuts = sorted(draw(st.sets(st.integers(1, grains - 1), max_size=5)))
    bounds = [start, *(start + cut * _GRAIN for cut in cuts), end]
    return [_block(draw, segment, low, high - low) for low, high in pairwise(bounds)]


def _block(
    draw: st.DrawFn, segment: SegmentPicture, address: int, size: int
) -> BlockPicture:
    large = segment.size_class == "large"
    fits = size > _MIB or not large
    states: tuple[BlockState, ...] = ("allocated", "pending", "free")
    state = draw(st.sampled_from(states if fits else states[2:]))
    if state == "free":
        return BlockPicture(Addr(address), Size(size), Size(0), "free")
    others = _streams.filter(lambda stream: stream != segment.stream)
    least, most = (_MIB + 1, size) if large else (1, min(size, _MIB))
    return BlockPicture(
        address=Addr(address),
        size=Size(size),
        requested=Size(draw(st.integers(least, most))),
        state=state,
        users=tuple(sorted(draw(st.sets(others, min_size=int(state == "pending"))))),
        frames=draw(_frames),
    )
