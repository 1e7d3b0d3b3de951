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
from sapwood.units import Addr, Size, hex_address, interval_text, size_text
from sapwood.violation import Violation

_ALIGNMENT: Final = 512
_LARGEST_SMALL: Final = 1 << 20

_LIVE: Final = frozenset({"allocated", "pending"})

Interval = tuple[int, int]

_Asked = tuple[object, str, str]
"""Whether a law is broken, the law, and about what."""


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
    asked = [_segments(picture), _pools(picture), _reserved(picture)]
    if physical is not None:
        mapped = sorted(physical)
        asked += [_agreement(picture, mapped), _sharing(picture, mapped)]
    return [
        Violation(law, about) for laws in asked for broken, law, about in laws if broken
    ]


def _segments(picture: Picture) -> Iterator[_Asked]:
    for segment in picture.segments:
        yield from _tiling(segment)
        yield from _backing(segment)
        for block in segment.blocks:
            yield from _block(segment, block)
    yield from _apart("segments do not overlap", map(_interval, picture.segments))


def _apart(law: str, intervals: Iterable[Interval]) -> Iterator[_Asked]:
    for first, second in pairwise(sorted(intervals)):
        yield second[0] < first[1], law, _texts((first, second))


def _tiling(segment: SegmentPicture) -> Iterator[_Asked]:
    law, at = "blocks tile their segment", int(segment.address)
    for block in segment.blocks:
        yield block.address != at, law, f"{_name(block)}, not {hex_address(at)}"
        at = block.address + block.size
    about = f"they end at {hex_address(at)} of {_span(segment)}"
    yield at != segment.address + segment.size, law, about
    for first, second in pairwise(segment.blocks):
        alike = first.state == second.state and first.state not in _LIVE
        about = f"{_name(first)} and {_name(second)}"
        yield alike, f"{first.state} neighbours are one block", about


def _backing(segment: SegmentPicture) -> Iterator[_Asked]:
    extents = [(at, at + size) for at, size in segment.extents]
    yield from _apart("extents do not overlap", extents)
    holes = {"unmapped"} if segment.expandable else set()
    there = _joined(extents)
    backed = _joined(_interval(b) for b in segment.blocks if b.state not in holes)
    about = f"{_texts(there)} for {_texts(backed)}"
    yield there != backed, "blocks that are not unmapped have memory", about


def _block(segment: SegmentPicture, block: BlockPicture) -> Iterator[_Asked]:
    about = (
        f"{_name(block)}, of which {block.requested} were asked for, used by "
        f"{block.users}, in a {segment.size_class} segment of {segment.stream}"
    )
    users, live = set(block.users), block.state in _LIVE
    yield block.size <= 0, "a block has a size", about
    uneven = block.address % _ALIGNMENT or block.size % _ALIGNMENT
    yield uneven, "blocks are aligned", about
    unmapped = block.state == "unmapped" and not segment.expandable
    yield unmapped, "a classic segment is mapped", about
    # A block that is lent to another stream may be used by its segment's, too.
    twice = len(users) < len(block.users) or users == {segment.stream}
    yield twice, "users are other streams, each once", about
    waits = block.state == "pending" and not users
    yield waits, "a pending block waits for a stream", about
    yield users and not live, "nothing uses what is free", about
    wrong = live and not 0 < block.requested <= block.size
    yield wrong, "a block holds what was asked for", about
    large = block.requested > _LARGEST_SMALL
    elsewhere = live and large != (segment.size_class == "large")
    yield elsewhere, "a request lies in the segments of its class", about


def _pools(picture: Picture) -> Iterator[_Asked]:
    for pool_id, count in Counter(pool.id for pool in picture.pools).items():
        yield count > 1, "a pool's id is its own", str(tuple(pool_id))
    known = {pool.id for pool in picture.pools} | {DEFAULT_POOL}
    for segment in picture.segments:
        about = f"{tuple(segment.pool)} of {_span(segment)}"
        yield segment.pool not in known, "a segment's pool is known", about
    for pool in picture.pools:
        yield from _pool(pool, [s for s in picture.segments if s.pool == pool.id])


def _pool(pool: PoolPicture, segments: Collection[SegmentPicture]) -> Iterator[_Asked]:
    name, private = str(tuple(pool.id)), pool.id != DEFAULT_POOL
    both = private and (pool.id.capture > 0) == (pool.id.user > 0)
    yield both, "a pool is a capture's or a user's", name
    yield pool.use_count < 0, "a pool is released as often as used", name
    over = private and not pool.use_count and not segments
    yield over, "a pool that is over holds memory still", name
    for segment in segments:
        parts = sum(block.state != "unmapped" for block in segment.blocks)
        divided = pool.no_split and parts > 1
        yield divided, "a pool without splits has whole segments", _span(segment)


def _reserved(picture: Picture) -> Iterator[_Asked]:
    about = f"{picture.free} of {picture.total} are free"
    yield not 0 <= picture.free <= picture.total, "a device has its memory", about
    reserved = sum(size for s in picture.segments for _, size in s.extents)
    used = picture.total - picture.free
    about = f"{size_text(reserved)} where {size_text(used)} are used"
    yield reserved > used, "what is reserved is used on the device", about


def _agreement(picture: Picture, physical: Collection[Mapped]) -> Iterator[_Asked]:
    drawn = {each for segment in picture.segments for each in segment.extents}
    there = {(each.address, each.size) for each in physical}
    for address, size in sorted(drawn - there):
        about = interval_text(address, address + size)
        yield True, "an extent of a picture is mapped", about
    for address, size in sorted(there - drawn):
        for segment in picture.segments:
            lo, hi = _interval(segment)
            about = f"{interval_text(address, address + size)} in {_span(segment)}"
            inside = lo < address + size and address < hi
            yield inside, "what is mapped is in the picture", about


def _sharing(picture: Picture, physical: Collection[Mapped]) -> Iterator[_Asked]:
    held: list[tuple[ExtentHandle, int, int, str]] = []
    for block in (block for segment in picture.segments for block in segment.blocks):
        start, end = _interval(block)
        for address, size, extent in physical if block.state in _LIVE else ():
            lo, hi = max(address, start), min(address + size, end)
            if lo < hi:
                held.append((extent, lo - address, hi - address, _name(block)))
    for (one, _, end, first), (other, start, _, second) in pairwise(sorted(held)):
        about = f"{first} and {second} in extent {one}"
        broken = one == other and start < end
        yield broken, "live blocks share no physical memory", about


def _joined(intervals: Iterable[Interval]) -> list[Interval]:
    joined: list[Interval] = []
    for lo, hi in sorted(intervals):
        if joined and lo <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(hi, joined[-1][1]))
        else:
            joined.append((lo, hi))
    return joined


def _interval(of: BlockPicture | SegmentPicture) -> Interval:
    return of.address, of.address + of.size


def _name(block: BlockPicture) -> str:
    return f"{block.state} {_span(block)}"


def _span(of: BlockPicture | SegmentPicture) -> str:
    return interval_text(*_interval(of))


def _texts(intervals: Iterable[Interval]) -> str:
    return ", ".join(interval_text(*each) for each in intervals) or "nothing"
