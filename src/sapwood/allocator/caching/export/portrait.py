"""A `Picture` of an allocator, drawn from what it knows, under its lock."""

from __future__ import annotations

from typing import cast

from sapwood.allocator.caching.block import Block, Segment
from sapwood.allocator.caching.pending import captured
from sapwood.allocator.caching.picture import (
    BlockPicture,
    BlockState,
    Entry,
    Picture,
    SegmentPicture,
)
from sapwood.allocator.caching.state import State
from sapwood.units import Size


def portray(state: State, index: int, free: Size, *, history: bool = True) -> Picture:
    """Return what the allocator looks like; ``free`` is the device's free memory."""
    entries: tuple[Entry, ...] = ()
    if history and state.history is not None:
        entries = state.history.entries()
    segments = [
        _segment(segment) for bin_ in state.pools.bins() for segment in bin_.segments
    ]
    return Picture(
        device=index,
        total=state.total,
        free=free,
        limit=state.limit,
        segments=tuple(sorted(segments, key=lambda segment: segment.address)),
        pools=tuple(pool.picture() for pool in state.pools.all.values()),
        settings=state.settings.plain(),
        history=entries,
    )


def _segment(segment: Segment) -> SegmentPicture:
    return SegmentPicture(
        address=segment.address,
        size=segment.size,
        stream=segment.bin.stream,
        size_class=segment.bin.size_class,
        pool=segment.bin.pool.id,
        expandable=segment.expandable,
        blocks=tuple(_block(block) for block in segment.blocks()),
        extents=tuple((extent.address, extent.size) for extent in segment.extents),
        frames=segment.stack.frames(),
    )


def _block(block: Block) -> BlockPicture:
    return BlockPicture(
        address=block.address,
        size=Size(block.size),
        requested=Size(block.requested),
        state=cast("BlockState", block.state.value),
        users=tuple(sorted(s if s >= 0 else captured(s) for s in block.users or ())),
        frames=block.stack.frames(),
    )
