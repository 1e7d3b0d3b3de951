"""What tests of the caching allocator stand on: one, on a small device, looked after.

A `CachingRig` puts every layer between an allocator and any driver, so that a test can
count calls, make them fail, compare the books with what the device has mapped, and see
at the end that everything was given back.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from sapwood.allocator.caching.allocator import Allocator
from sapwood.allocator.caching.picture import (
    DEFAULT_POOL,
    BlockPicture,
    Picture,
    PoolId,
    SegmentPicture,
)
from sapwood.allocator.caching.records.statistics import Account, Counters
from sapwood.allocator.caching.settings import DEFAULT, Settings
from sapwood.allocator.caching.validate import validate
from sapwood.driver.api import Driver, StreamHandle
from sapwood.driver.layers import Checked, Faulty, Recorded
from sapwood.errors import InternalError, SapwoodError
from sapwood.units import Addr, Size
from tests.support.atlas import Atlas
from tests.support.witness import Witness

__all__ = ["CachingRig", "allocated", "fixed_bytes", "recount"]

_LIVE: Final = frozenset({"allocated", "pending"})


class CachingRig:
    """An allocator on a driver that it has to itself, of at most ``total`` bytes.

    From the allocator down: ``witness``, ``recorded``, ``faulty``, ``atlas``,
    ``checked``, the driver. ``streams`` are those that `stream` made.
    """

    def __init__(
        self, driver: Driver, settings: Settings = DEFAULT, *, total: Size | None = None
    ) -> None:
        self.driver = driver
        self.checked = Checked(driver)
        self.atlas = Atlas(self.checked, total)
        self.faulty = Faulty(self.atlas)
        self.recorded = Recorded(self.faulty)
        self.witness = Witness(self.recorded)
        self.allocator = Allocator(self.witness, settings)
        self.witness.inside = self.allocator._gate.is_inside
        self.streams: list[StreamHandle] = []
        self.finished = False

    def stream(self) -> StreamHandle:
        """Return a new stream, destroyed at the end."""
        self.streams.append(self.checked.create_stream())
        return self.streams[-1]

    def wait(self, later: StreamHandle, earlier: StreamHandle) -> None:
        """Order further work of one stream after all work of another so far."""
        event = self.checked.create_event()
        self.checked.record_event(event, earlier)
        self.checked.wait_event(later, event)
        self.checked.destroy_event(event)

    def fill(self, address: Addr, size: int, value: int, stream: StreamHandle) -> None:
        """Set all bytes of a block, in stream order."""
        self.checked.set(address, value, Size(size), stream)

    def read(self, address: Addr, size: int, stream: StreamHandle) -> bytearray:
        """Return the bytes of a block, in stream order, and wait for them."""
        return self.checked.download(address, Size(size), stream)

    def blocks(self, *states: str) -> list[BlockPicture]:
        """Return the blocks in these states, or all, in address order."""
        return [
            block
            for segment in sorted(
                self.allocator.picture().segments, key=lambda each: each.address
            )
            for block in segment.blocks
            if not states or block.state in states
        ]

    def check(self) -> Picture:
        """Raise `InternalError` where the books cannot be true; return the picture."""
        picture = self.allocator.picture()
        broken = validate(picture, self.atlas.mapped())
        if broken:
            raise InternalError(str(broken[0]), picture)
        wrong = _miscounted(picture, self.allocator.counters())
        if wrong:
            raise InternalError(f"counters are exact: {wrong}", picture)
        return picture

    def finish(self) -> None:
        """Free what is allocated, close everything, and look for what is left.

        Raises `InternalError` where the books are wrong or something was not given
        back. Done once, it is done.
        """
        if self.finished:
            return
        self.finished = True
        self.faulty.plan = ()
        self.check()
        for block in self.blocks("allocated"):
            self.allocator.free(block.address)
        self.allocator.close()
        while self.streams:
            self.checked.destroy_stream(self.streams.pop())
        if self.checked.leaks():
            gc.collect()
        if self.checked.leaks() or self.atlas.used():
            raise InternalError(
                f"closing gives all back, but these are held: {self.checked.leaks()}",
                self.checked.leaks(),
            )
        self.driver.close()

    def abandon(self) -> None:
        """Give everything back by force, after a test that failed."""
        self.finished = True
        with suppress(SapwoodError):
            self.driver.close()


def allocated(picture: Picture) -> dict[Addr, tuple[BlockPicture, PoolId]]:
    """Return the allocated blocks by address, each with the pool that it lies in."""
    return {
        block.address: (block, segment.pool)
        for segment in picture.segments
        for block in segment.blocks
        if block.state == "allocated"
    }


def fixed_bytes(picture: Picture) -> int:
    """Return the reserved bytes that nobody could give back to the device.

    These are the extents in which anything lives, and all of private pools in use.
    """
    in_use = {pool.id for pool in picture.pools if pool.use_count} - {DEFAULT_POOL}
    return sum(
        size
        for segment in picture.segments
        for at, size in segment.extents
        if segment.pool in in_use
        or any(
            block.address < at + size and at < block.address + block.size
            for block in segment.blocks
            if block.state in _LIVE
        )
    )


def recount(segments: Iterable[SegmentPicture]) -> dict[str, int]:
    """Return what an allocator must count of segments now, by the names of `Account`.

    As PyTorch counts: expandable segments are no ``segment``, and what is free in them
    is never ``inactive_split``.
    """
    counts = dict.fromkeys(Account.__dataclass_fields__, 0)
    for segment in segments:
        _count_blocks(counts, segment.blocks)
        counts["reserved_bytes"] += sum(size for _, size in segment.extents)
        if segment.expandable:
            continue
        counts["segment"] += 1
        if len(segment.blocks) > 1:
            split = [block.size for block in segment.blocks if block.state == "free"]
            counts["inactive_split"] += len(split)
            counts["inactive_split_bytes"] += sum(split)
    return counts


def _count_blocks(counts: dict[str, int], blocks: Iterable[BlockPicture]) -> None:
    for block in blocks:
        if block.state == "allocated":
            counts["allocation"] += 1
            counts["allocated_bytes"] += block.size
        if block.state in _LIVE:
            counts["active"] += 1
            counts["active_bytes"] += block.size
            counts["requested_bytes"] += block.requested


def _scopes(
    picture: Picture, counters: Counters
) -> Iterator[tuple[object, Account, Iterable[SegmentPicture]]]:
    """Yield each account with its name and the segments that it is about."""
    segments = picture.segments
    yield "total", counters.total, segments
    for kind, account in counters.classes.items():
        yield kind, account, [s for s in segments if s.size_class == kind]
    for pool, account in counters.pools.items():
        yield pool, account, [s for s in segments if s.pool == pool]
    for (pool, kind), account in counters.pool_classes.items():
        mine = [s for s in segments if (s.pool, s.size_class) == (pool, kind)]
        yield (pool, kind), account, mine
    for stream, account in counters.streams.items():
        yield stream, account, [s for s in segments if s.stream == stream]


def _miscounted(picture: Picture, counters: Counters) -> str:
    return ", ".join(
        f"{scope}: {name} is {number}, not {getattr(account, name).current}"
        for scope, account, segments in _scopes(picture, counters)
        for name, number in recount(segments).items()
        if getattr(account, name).current != number
    )
