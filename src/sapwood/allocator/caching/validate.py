"""Whether a picture of a caching allocator can be true: laws over plain values.

Written from the words of `picture`, without the code that keeps the books, so that
the two can disagree. Tests and `sapwood doctor` ask it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from sapwood.allocator.caching.picture import (
    DEFAULT_POOL,
    BlockPicture,
    Picture,
    PoolPicture,
    SegmentPicture,
)
from sapwood.driver.api import ExtentHandle
from sapwood.units import Addr, Size, hex_address, size_text
from sapwood.violation import Violation

_ALIGNMENT: Final = 512
_LARGEST_SMALL: Final = 1 << 20

_LIVE: Final = frozenset({"allocated", "pending"})

Interval = tuple[int, int]


class Mapped(NamedTuple):
    """Physical memory at an address, as the device has it: a whole extent."""

    address: Addr
    size: Size
    extent: ExtentHandle


def validate(
    picture: Picture, physical: Iterable[Mapped] | None = None
) -> list[Violation]:
    """Return every law that a picture breaks; none, if all is well.

    ``physical`` is all that is mapped on the device, where that is known: then the
    picture must agree with it, and no two live blocks may share a byte of it.
    """
    found = [*_segments(picture), *_pools(picture), *_reserved(picture)]
    if physical is not None:
        mapped = sorted(physical)
        found += [*_agreement(picture, mapped), *_sharing(picture, mapped)]
    return found


def _segments(picture: Picture) -> Iterator[Violation]:
    for segment in picture.segments:
        yield from _tiling(segment)
        yield from _neighbours(segment)
        yield from _backing(segment)
        for block in segment.blocks:
            yield from _block(segment, block)
    spans = sorted((s.address, s.address + s.size) for s in picture.segments)
    for first, second in pairwise(spans):
        if second[0] < first[1]:
            about = f"{_text(*first)} and {_text(*second)}"
            yield Violation("segments do not overlap", about)


def _tiling(segment: SegmentPicture) -> Iterator[Violation]:
    at = int(segment.address)
    for block in segment.blocks:
        if block.address != at:
            about = f"{_name(block)}, not {hex_address(at)}"
            yield Violation("blocks tile their segment", about)
        at = block.address + block.size
    if at != segment.address + segment.size:
        about = f"they end at {hex_address(at)} of {_span(segment)}"
        yield Violation("blocks tile their segment", about)


def _neighbours(segment: SegmentPicture) -> Iterator[Violation]:
    for first, second in pairwise(segment.blocks):
        if first.state == second.state and first.state not in _LIVE:
            about = f"{_name(first)} and {_name(second)}"
            yield Violation(f"{first.state} neighbours are one block", about)


def _backing(segment: SegmentPicture) -> Iterator[Violation]:
    extents = sorted((at, at + size) for at, size in segment.extents)
    for first, second in pairwise(extents):
        if second[0] < first[1]:
            about = f"{_text(*first)} and {_text(*second)}"
            yield Violation("extents do not overlap", about)
    backed = [
        (b.address, b.address + b.size)
        for b in segment.blocks
        if not (segment.expandable and b.state == "unmapped")
    ]
    if _joined(extents) != _joined(backed):
        about = f"{_texts(_joined(extents))} for {_texts(_joined(backed))}"
        yield Violation("blocks that are not unmapped have memory", about)


def _block(segment: SegmentPicture, block: BlockPicture) -> Iterator[Violation]:
    if block.size <= 0:
        yield Violation("a block has a size", _name(block))
    if block.address % _ALIGNMENT or block.size % _ALIGNMENT:
        yield Violation("blocks are aligned", _name(block))
    if block.state == "unmapped" and not segment.expandable:
        yield Violation("a classic segment is mapped", _name(block))
    users = set(block.users)
    # A block that is lent to another stream may be used by its segment's, too.
    if len(users) < len(block.users) or users == {segment.stream}:
        about = f"{_name(block)}: {block.users} beside {segment.stream}"
        yield Violation("users are other streams, each once", about)
    if block.state == "pending" and not users:
        yield Violation("a pending block waits for a stream", _name(block))
    if block.state not in _LIVE:
        if users:
            yield Violation("nothing uses what is free", _name(block))
        return
    if not 0 < block.requested <= block.size:
        about = f"{block.requested} of {_name(block)}"
        yield Violation("a block holds what was asked for", about)
    if (block.requested > _LARGEST_SMALL) != (segment.size_class == "large"):
        about = f"{block.requested} in a {segment.size_class} segment"
        yield Violation("a request lies in the segments of its class", about)


def _pools(picture: Picture) -> Iterator[Violation]:
    for pool_id, count in Counter(pool.id for pool in picture.pools).items():
        if count > 1:
            yield Violation("a pool's id is its own", str(tuple(pool_id)))
    known = {pool.id for pool in picture.pools} | {DEFAULT_POOL}
    for segment in picture.segments:
        if segment.pool not in known:
            about = f"{tuple(segment.pool)} of {_span(segment)}"
            yield Violation("a segment's pool is known", about)
    for pool in picture.pools:
        yield from _pool(pool, [s for s in picture.segments if s.pool == pool.id])


def _pool(
    pool: PoolPicture, segments: Collection[SegmentPicture]
) -> Iterator[Violation]:
    name = str(tuple(pool.id))
    if pool.id != DEFAULT_POOL and (pool.id.capture > 0) == (pool.id.user > 0):
        yield Violation("a pool is a capture's or a user's", name)
    if pool.use_count < 0:
        yield Violation("a pool is released as often as used", name)
    if pool.id != DEFAULT_POOL and not pool.use_count and not segments:
        yield Violation("a pool that is over holds memory still", name)
    if not pool.no_split:
        return
    for segment in segments:
        if sum(block.state != "unmapped" for block in segment.blocks) > 1:
            yield Violation("a pool without splits has whole segments", _span(segment))


def _reserved(picture: Picture) -> Iterator[Violation]:
    if not 0 <= picture.free <= picture.total:
        about = f"{picture.free} of {picture.total} are free"
        yield Violation("a device has its memory", about)
    reserved = sum(size for s in picture.segments for _, size in s.extents)
    used = picture.total - picture.free
    if reserved > used:
        about = f"{size_text(reserved)} where {size_text(used)} are used"
        yield Violation("what is reserved is used on the device", about)


def _agreement(picture: Picture, physical: Collection[Mapped]) -> Iterator[Violation]:
    drawn = {each for segment in picture.segments for each in segment.extents}
    there = {(each.address, each.size) for each in physical}
    for address, size in sorted(drawn - there):
        about = _text(address, address + size)
        yield Violation("an extent of a picture is mapped", about)
    for address, size in sorted(there - drawn):
        for segment in picture.segments:
            if segment.address < address + size and address < segment.address + (
                segment.size
            ):
                about = f"{_text(address, address + size)} in {_span(segment)}"
                yield Violation("what is mapped is in the picture", about)


def _sharing(picture: Picture, physical: Collection[Mapped]) -> Iterator[Violation]:
    held: list[tuple[ExtentHandle, int, int, BlockPicture]] = []
    live = [
        block
        for segment in picture.segments
        for block in segment.blocks
        if block.state in _LIVE
    ]
    for block in live:
        for address, size, extent in physical:
            lo = max(address, block.address)
            hi = min(address + size, block.address + block.size)
            if lo < hi:
                held.append((extent, lo - address, hi - address, block))
    held.sort(key=lambda each: each[:3])
    for (one, _, end, first), (other, start, _, second) in pairwise(held):
        if one == other and start < end:
            about = f"{_name(first)} and {_name(second)} in extent {one}"
            yield Violation("live blocks share no physical memory", about)


def _joined(intervals: Iterable[Interval]) -> list[Interval]:
    joined: list[Interval] = []
    for lo, hi in sorted(intervals):
        if joined and lo <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(hi, joined[-1][1]))
        else:
            joined.append((lo, hi))
    return joined


def _name(block: BlockPicture) -> str:
    return f"{block.state} {_text(block.address, block.address + block.size)}"


def _span(segment: SegmentPicture) -> str:
    return _text(segment.address, segment.address + segment.size)


def _texts(intervals: Iterable[Interval]) -> str:
    return ", ".join(_text(*each) for each in intervals) or "nothing"


def _text(lo: int, hi: int) -> str:
    return f"[{hex_address(lo)}, {hex_address(hi)})"
