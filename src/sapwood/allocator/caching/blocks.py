"""What an allocator knows of every byte of its addresses, and who may have it.

The *blocks* of a *segment* tile it, and are linked in address order in a ring that a
*guard* closes, so that every block has two neighbours. Free neighbours are always
merged. A *bin* has the free blocks that one *pool* keeps for one stream and size class.
A private pool keeps its memory to itself, until nobody uses it any more. *Routes* send
a thread's or a stream's allocations to one; the last that fits wins, so they nest.
"""

from __future__ import annotations

import enum
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from operator import attrgetter
from typing import Final, Protocol

from sapwood.allocator.caching.picture import (
    DEFAULT_POOL,
    PoolId,
    PoolPicture,
    SizeClass,
)
from sapwood.allocator.caching.records.history import NO_STACK, Stack
from sapwood.driver.api import ExtentHandle, StreamHandle
from sapwood.errors import InternalError, MisuseError
from sapwood.units import Addr, Size


class State(enum.Enum):
    """What a block is; compared by identity, as that is what a hit pays for."""

    FREE = "free"
    ALLOCATED = "allocated"
    PENDING = "pending"
    UNMAPPED = "unmapped"
    GUARD = "guard"


FREE: Final = State.FREE
ALLOCATED: Final = State.ALLOCATED
PENDING: Final = State.PENDING
UNMAPPED: Final = State.UNMAPPED
_GUARD: Final = State.GUARD


@dataclass(slots=True, eq=False)
class Block:
    """Bytes ``[address, address + size)`` of a segment.

    ``requested`` is what the holder asked for. ``users`` are streams, other than the
    segment's, that may be using it. ``reach`` is the size it counts as among free
    blocks. ``guest``: the segment's own stream has not used it, as it was lent to
    another.
    """

    address: Addr
    size: int
    segment: Segment
    state: State = field(init=False, default=FREE)
    users: set[StreamHandle] | None = field(init=False, default=None)
    reach: int = field(init=False, default=0)
    requested: int = field(init=False, default=0)
    guest: bool = field(init=False, default=False)
    stack: Stack = field(init=False, default=NO_STACK)
    prev: Block = field(init=False, repr=False)
    next: Block = field(init=False, repr=False)

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.size


Blocks = dict[int, Block]
"""All blocks but guards, by address."""


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """A piece of physical memory, and where it is mapped.

    ``handle`` is None where the memory is a segment source's.
    """

    address: Addr
    size: Size
    handle: ExtentHandle | None = None

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.size

    def physical(self) -> ExtentHandle:
        """Return the handle, by which it can be mapped elsewhere."""
        if self.handle is None:
            raise InternalError("what a segment source mapped stays where it is")
        return self.handle


def size_of(extents: Iterable[Extent]) -> Size:
    """Return the bytes of extents together."""
    return Size(sum(extent.size for extent in extents))


@dataclass(slots=True, eq=False)
class Segment:
    """A range of addresses whose blocks belong to one bin.

    ``expandable``: its addresses were reserved for growth, so that it may have
    unmapped blocks: its ``holes``. ``extents`` are in address order. ``idle_since``
    says at which search of its bin it last became wholly free. A segment of
    somebody's own ``source`` is given back there.
    """

    address: Addr
    size: Size
    bin: Bin
    _: KW_ONLY
    expandable: bool
    source: SegmentSource | None = None
    stack: Stack = NO_STACK
    extents: list[Extent] = field(init=False, default_factory=list)
    holes: dict[Block, None] = field(init=False, default_factory=dict)
    idle_since: int = field(init=False, default=0)
    guard: Block = field(init=False)

    def __post_init__(self) -> None:
        """Close the ring."""
        self.guard = Block(Addr(self.address + self.size), 0, self)
        self.guard.state = _GUARD
        self.guard.prev = self.guard.next = self.guard

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks in address order; the one yielded may be changed."""
        block = self.guard.next
        while block is not self.guard:
            following = block.next
            yield block
            block = following

    def whole(self) -> Block | None:
        """Return its only block, if it has one only."""
        first = self.guard.next
        return first if first.next is self.guard else None


def split(blocks: Blocks, block: Block, size: int) -> Block:
    """Cut a block after ``size`` bytes; return the rest, in the same state.

    The ring and the table of blocks are kept; indexes of free blocks are the caller's.
    """
    rest = Block(Addr(block.address + size), block.size - size, block.segment)
    rest.state = block.state
    rest.prev, rest.next = block, block.next
    rest.next.prev = block.next = rest
    block.size = size
    blocks[rest.address] = rest
    return rest


def merge_next(blocks: Blocks, block: Block) -> None:
    """Let a block take the place of its next neighbour, too, as `split` keeps it."""
    gone = block.next
    block.size += gone.size
    block.next = gone.next
    block.next.prev = block
    del blocks[gone.address]


_BEYOND: Final = 1 << 62
_EDGES: Final = 0, _BEYOND

_address: Final = attrgetter("address")


@dataclass(slots=True, eq=False)
class Bin:
    """Free blocks in order of size, and the segments they are parts of.

    Those of one size are in order of address, so that the first that is not too small
    is the smallest block that fits, the lowest of several. A block before unmapped
    addresses counts as large as it could grow: it is taken last, and found by whoever
    asks for more than is mapped.

    ``free`` are the blocks, ``sizes`` what each counts as. Both begin and end with an
    edge, which serves nobody, so that every block has two neighbours there.
    ``plain``: all its segments are expandable, and every block is split to the byte;
    then the short way through `Allocator.malloc` and `free` serves it.
    """

    pool: Pool
    stream: StreamHandle
    size_class: SizeClass
    free: list[Block] = field(init=False)
    sizes: list[int] = field(init=False)
    segments: dict[Segment, None] = field(init=False, default_factory=dict)
    searches: int = field(init=False, default=0)
    plain: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        """Have edges, and no blocks."""
        edge = Segment(Addr(0), Size(0), self, expandable=True).guard
        self.free, self.sizes = [edge, edge], [*_EDGES]

    def blocks(self) -> list[Block]:
        """Return the free blocks in their order."""
        return self.free[1:-1]

    def is_empty(self) -> bool:
        """Return whether no block is free."""
        return len(self.free) == len(_EDGES)

    def add(self, block: Block) -> None:
        """Index a free block."""
        reach = block.size
        if block.next.state is UNMAPPED:
            reach += block.next.size
        at = bisect_left(self.sizes, reach)
        if self.sizes[at] == reach:
            at = self._place(reach, block.address, at)
        block.reach = reach
        self.sizes[at:at] = (reach,)
        self.free[at:at] = (block,)

    def remove(self, block: Block) -> None:
        """Take a free block out of the index."""
        at = bisect_left(self.sizes, block.reach)
        if self.free[at] is not block:
            at = self._place(block.reach, block.address, at)
        del self.sizes[at], self.free[at]

    def _place(self, reach: int, address: int, first: int) -> int:
        """Return where a block is, or goes, among those of its size from ``first``."""
        last = bisect_right(self.sizes, reach, first)
        return bisect_left(self.free, address, first, last, key=_address)

    def fits(self, need: int) -> Iterator[Block]:
        """Yield the free blocks of at least ``need`` bytes, the best first."""
        for at in range(bisect_left(self.sizes, need), len(self.free) - 1):
            block = self.free[at]
            if block.size >= need:
                yield block

    # What a hit does. Nothing is called from where state changes first, so that an
    # interrupt, which comes where something is called, leaves all as it was.

    def cut(
        self, need: int, asked: int, blocks: Blocks, spare: list[Block]
    ) -> Block | None:
        """Let the best fit be allocated, and give back what is too much of it.

        None where no block of that size is mapped. ``spare`` are blocks of nothing.
        """
        sizes, free = self.sizes, self.free
        at = bisect_left(sizes, need)
        block = free[at]
        more = block.size - need
        if more < 0:
            return None
        if more == 0:
            block.requested, block.state = asked, ALLOCATED
            del sizes[at], free[at]
            return block
        start, after = block.address + need, block.next
        reach = more + after.size if after.state is UNMAPPED else more
        to = at
        if sizes[at - 1] >= reach:
            to = bisect_left(sizes, reach)
            if sizes[to] == reach:
                to = self._place(reach, start, to)
        # A call of Addr costs as much as all the rest of a block.
        rest = spare.pop() if spare else Block(start, more, block.segment)  # type: ignore[arg-type]
        rest.address, rest.size, rest.reach = start, more, reach  # type: ignore[assignment]
        rest.segment, rest.prev, rest.next = block.segment, block, after
        after.prev = block.next = blocks[start] = rest
        block.size, block.requested, block.state = need, asked, ALLOCATED
        if to == at:
            sizes[at], free[at] = reach, rest
        else:
            del sizes[at], free[at]
            sizes[to:to] = (reach,)
            free[to:to] = (rest,)
        return block

    def join(self, block: Block, blocks: Blocks, spare: list[Block]) -> Block:
        """Let a block be free, as one with its free neighbours; return the whole.

        What becomes a part of another block is added to ``spare``.
        """
        sizes, free = self.sizes, self.free
        before, after = block.prev, block.next
        whole, beyond, size = block, after, block.size
        at = other = 0
        if after.state is FREE:
            beyond, size = after.next, size + after.size
            at = bisect_left(sizes, after.reach)
            if free[at] is not after:
                at = self._place(after.reach, after.address, at)
        if before.state is FREE:
            whole, size, other = before, size + before.size, at
            at = bisect_left(sizes, before.reach)
            if free[at] is not before:
                at = self._place(before.reach, before.address, at)
        reach = size + beyond.size if beyond.state is UNMAPPED else size
        to = at + 1
        if not at or reach >= sizes[to]:
            to = bisect_left(sizes, reach, to)
            if sizes[to] == reach:
                to = self._place(reach, whole.address, to)
        if to - at == 1 and at and not other:
            sizes[at], free[at] = reach, whole
        else:
            self._move(at, other, to, reach, whole)
        whole.reach = reach
        block.state, block.requested, block.stack = FREE, 0, NO_STACK
        if beyond is not after:
            del blocks[after.address]
            spare += (after,)
        if whole is not block:
            del blocks[block.address]
            spare += (block,)
        whole.size, whole.next, beyond.prev = size, beyond, whole
        return whole

    def _move(self, at: int, other: int, to: int, reach: int, block: Block) -> None:
        """Index a block before ``to``, and none at two other places; 0 is none."""
        sizes, free = self.sizes, self.free
        if other:
            lo, hi = (at, other) if at < other else (other, at)
            del sizes[hi], free[hi], sizes[lo], free[lo]
            to -= 2
        elif at:
            del sizes[at], free[at]
            to -= 1
        sizes[to:to] = (reach,)
        free[to:to] = (block,)


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
