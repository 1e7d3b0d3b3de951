"""What an allocator of pinned memory has, where it is, and who uses it.

It makes no device call and takes no lock: it is for the holder of the allocator's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

from sapwood.allocator.caching.picture import PoolId
from sapwood.allocator.pinned.block import Block, Request, Segment
from sapwood.allocator.pinned.pools import UNROUTED, Pool, Pools
from sapwood.allocator.pinned.statistics import Statistics
from sapwood.driver.api import StreamHandle
from sapwood.units import Addr, Size


class Live:
    """Blocks by address; all but `take` is for the holder of the allocator's lock."""

    def __init__(self) -> None:
        self._blocks: dict[Addr, Block] = {}
        self._starts: list[Addr] = []

    def add(self, block: Block) -> None:
        """Let a block be found."""
        self._blocks[block.address] = block
        insort(self._starts, block.address)

    def take(self, address: Addr) -> Block | None:
        """Take out the block that begins at an address, if one does.

        Of several threads that do, one gets it. `settle` follows.
        """
        return self._blocks.pop(address, None)

    def settle(self, block: Block) -> None:
        """Finish what `take` has begun."""
        del self._starts[bisect_left(self._starts, block.address)]

    def containing(self, address: Addr) -> Block | None:
        """Return the block that an address lies in, if any."""
        found = self._blocks.get(address)
        if found is not None:
            return found
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        found = self._blocks.get(self._starts[index])
        inside = found is not None and address < found.address + found.size
        return found if inside else None

    def __iter__(self) -> Iterator[Block]:
        return iter(list(self._blocks.values()))


class Stock:
    """Segments, their blocks, and the counters of both."""

    def __init__(self) -> None:
        self.live = Live()
        self.pools = Pools()
        self.statistics = Statistics()
        self.segments: set[Segment] = set()
        self._kept: set[Block] = set()

    def pool(self) -> Pool:
        """Return the pool that this thread allocates from."""
        return self.pools.route() or self.pools.default

    def take(self, pool: Pool, request: Request) -> Block | None:
        """Hand out a free block of a pool, if one fits."""
        block = pool.take(request)
        if block is not None:
            self._hand_out(block)
        return block

    def begin(self, segment: Segment, request: Request | None, seconds: float) -> Block:
        """Hand out a block of a new segment, which it took ``seconds`` to get.

        Without a request let blocks be cut from it, which stays.
        """
        self.segments.add(segment)
        self.statistics.count_segment(1, segment.size, seconds)
        pool = self.pools.all[segment.pool]
        block = Block(segment.address, segment.size, segment, segment.size)
        if request is None:
            pool.put(block)
        else:
            self._hand_out(pool.split(block, request))
        return block

    def put(self, block: Block, bound: Size | None) -> list[Segment]:
        """Take a block back that nothing uses; return what is too much to keep.

        One that a recording uses is kept for it instead.
        """
        if block.captured:
            self._kept.add(block)
            return []
        return self._put(block, bound)

    def end(self, segment: Segment, seconds: float) -> None:
        """Forget a segment that went back in so much time."""
        self.segments.remove(segment)
        self.statistics.count_segment(-1, segment.size, seconds)

    def close(self) -> list[Segment]:
        """Return all idle segments, also those that recordings kept."""
        for block in self._kept:
            self._put(block, None)
        self._kept.clear()
        return [one for pool in self.pools.all.values() for one in pool.end()]

    def use(self, block: Block, stream: StreamHandle, *, recorded: bool) -> None:
        """Note that a copy on a stream uses a block, or is to when it is replayed."""
        if recorded:
            route = self.pools.route()
            block.captured.add(UNROUTED if route is None else route.id)
        else:
            block.users.add(stream)

    def is_recorded(self, id_: PoolId) -> bool:
        """Return whether a pool keeps blocks for what was captured."""
        return any(id_ in block.captured for block in (*self.live, *self._kept))

    def release(self, id_: PoolId, after: Iterable[StreamHandle]) -> list[Block]:
        """End one use of a pool; return the blocks that nothing keeps any more.

        What it recorded may run on the streams ``after`` still.
        """
        pool = self.pools.release(id_)
        if pool is None:
            return []
        for segment in self.segments:
            if segment.pool == id_:
                segment.pool = self.pools.default.id
        self.pools.default.adopt(pool)
        for block in (*self.live, *self._kept):
            if id_ in block.captured:
                block.captured.remove(id_)
                block.users.update(after)
        loose = [block for block in self._kept if not block.captured]
        self._kept.difference_update(loose)
        return loose

    def forget(self, stream: StreamHandle, successor: StreamHandle) -> None:
        """Let a stream's copies count as those of its successor."""
        for block in (*self.live, *self._kept):
            if stream in block.users:
                block.users.remove(stream)
                block.users.add(successor)

    def _hand_out(self, block: Block) -> None:
        self.live.add(block)
        self.statistics.count_block(1, block.size, block.requested)

    def _put(self, block: Block, bound: Size | None) -> list[Segment]:
        self.live.settle(block)
        self.statistics.count_block(-1, block.size, block.requested)
        pool = self.pools.all[block.segment.pool]
        return pool.put(block, bound if pool is self.pools.default else None)
