"""Pools: who allocates from which bins, and whose turn it is.

A private pool keeps its memory to itself, until nobody uses it any more. *Routes*
send a thread's or a stream's allocations to one; the last that fits wins, so routes
nest.
"""

from __future__ import annotations

import itertools
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

from sapwood.allocator.caching.bins import Bin
from sapwood.allocator.caching.picture import (
    DEFAULT_POOL,
    PoolId,
    PoolPicture,
    SizeClass,
)
from sapwood.driver.api import StreamHandle
from sapwood.errors import MisuseError
from sapwood.units import Addr, Size

# Ids are unique in the process, as graphs of several devices may share one list.
_captures = itertools.count(1)
_users = itertools.count(1)


def new_id(*, capture: bool) -> PoolId:
    """Return the id of a new pool, a capture's or a user's."""
    return PoolId(next(_captures), 0) if capture else PoolId(0, next(_users))


class SegmentSource(Protocol):
    """Somebody's own source of whole segments, for one pool."""

    def allocate(self, size: Size, stream: StreamHandle) -> Addr:
        """Return memory of ``size`` bytes; raises `OutOfMemory`."""

    def free(self, address: Addr, size: Size, stream: StreamHandle) -> None:
        """Take back what `allocate` returned; nothing of it is in use."""


@dataclass(slots=True, eq=False)
class Pool:
    """The bins of one owner.

    ``no_split``: each request gets a segment of its own. ``use_on_oom``: its free
    blocks serve anybody before memory runs out. ``capture``: recorded work keeps
    using its memory, which stays where it is while the pool is in use.
    """

    id: PoolId
    _: KW_ONLY
    no_split: bool = False
    use_on_oom: bool = False
    capture: bool = False
    source: SegmentSource | None = None
    use_count: int = 1
    small: dict[StreamHandle, Bin] = field(default_factory=dict)
    large: dict[StreamHandle, Bin] = field(default_factory=dict)

    @property
    def private(self) -> bool:
        """Whether it is anybody's own."""
        return self.id != DEFAULT_POOL

    @property
    def freeable(self) -> bool:
        """Whether free memory in it may go back at any time."""
        return not self.private or self.use_count == 0

    def of_class(self, size_class: SizeClass) -> dict[StreamHandle, Bin]:
        """Return its bins of one size class, by stream."""
        return self.small if size_class == "small" else self.large

    def bins(self) -> list[Bin]:
        """Return all its bins."""
        return [*self.small.values(), *self.large.values()]

    def bin(self, stream: StreamHandle, size_class: SizeClass) -> Bin:
        """Return the bin of a stream and size class, made at first need."""
        bins = self.of_class(size_class)
        bin_ = bins.get(stream)
        if bin_ is None:
            bin_ = bins[stream] = Bin(self, stream, size_class)
        return bin_

    def picture(self) -> PoolPicture:
        """Return the pool as plain values."""
        return PoolPicture(self.id, self.use_count, self.no_split, self.use_on_oom)


@dataclass(frozen=True, slots=True)
class Route:
    """Which allocations go to a pool: of a thread, on a stream; None means any."""

    pool: Pool
    thread: int | None
    stream: StreamHandle | None


class Pools:
    """All pools of one allocator, and the routes to them, innermost last."""

    def __init__(self) -> None:
        self.default = Pool(DEFAULT_POOL)
        self.all: dict[PoolId, Pool] = {DEFAULT_POOL: self.default}
        self.routes: list[Route] = []

    def named(self, id_: PoolId) -> Pool:
        """Return a pool that is there; raises `MisuseError`."""
        pool = self.all.get(id_)
        if pool is None:
            raise MisuseError(
                f"there is no pool {tuple(id_)} here. Use what create_pool of this "
                "allocator returned, before its last release"
            )
        return pool

    def used(self, id_: PoolId) -> Pool:
        """Return a private pool that somebody uses; raises `MisuseError`."""
        pool = self.named(id_)
        if not pool.private:
            raise MisuseError(
                "the default pool is always in use: name a pool that create_pool "
                "returned"
            )
        if pool.use_count == 0:
            raise MisuseError(
                f"pool {tuple(id_)} was released for the last time. Create another"
            )
        return pool

    def begin(self, route: Route) -> None:
        """Send what fits the route to its pool, which is in use once more."""
        if route in self.routes:
            raise MisuseError(
                f"pool {tuple(route.pool.id)} is already routed to for this thread "
                "and stream. End that before beginning it again"
            )
        self.routes.append(route)
        route.pool.use_count += 1

    def end(self, pool: Pool, thread: int) -> None:
        """End the innermost route to the pool, this thread's rather than others'."""
        mine = [r for r in self.routes if r.pool is pool and r.thread == thread]
        any_thread = [r for r in self.routes if r.pool is pool and r.thread is None]
        if not mine and not any_thread:
            raise MisuseError(
                f"pool {tuple(pool.id)} is not routed to by this thread. End what "
                "begin began, once, in the same thread"
            )
        self.routes.remove((mine or any_thread)[-1])
        pool.use_count -= 1

    def routed(self, thread: int, stream: StreamHandle) -> Pool | None:
        """Return where the allocation of a thread on a stream is routed to."""
        for route in reversed(self.routes):
            if route.thread in {None, thread} and route.stream in {None, stream}:
                return route.pool
        return None

    def bins(self) -> list[Bin]:
        """Return the bins of all pools."""
        return [bin_ for pool in self.all.values() for bin_ in pool.bins()]

    def bury(self) -> list[PoolId]:
        """Forget released pools that hold no memory any more; return which."""
        gone = [
            pool.id
            for pool in self.all.values()
            if pool.use_count == 0 and not any(s.segments for s in pool.bins())
        ]
        for id_ in gone:
            del self.all[id_]
        return gone
