"""What an allocator of pinned memory has, where it is, and who uses it.

Segments are tiled by blocks; a pool keeps the free ones of a capture, or of all others,
so that what a recording uses is kept for its replays. Nothing here makes a device call
or takes a lock: only the holder of the allocator's lock may call it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sapwood.allocator.caching.picture import DEFAULT_POOL, PoolId
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.pinned.sources import Source
from sapwood.allocator.pinned.statistics import Statistics
from sapwood.driver.api import StreamHandle
from sapwood.errors import MisuseError
from sapwood.units import Addr, Size, align_up, size_text

ALIGNMENT = Size(512)
LARGEST = Size(1 << 60)
SMALL = Size(1 << 20)
"""Exact blocks up to this share segments, and leave those of larger ones alone."""

_SMALL_SEGMENT = Size(2 << 20)

_PAGE = Size(4096)

Kind = Literal["whole", "small", "large", "reserve"]
"""A ``whole`` segment is one block of a power of two; others are cut."""


class Request(NamedTuple):
    """``size`` bytes asked for: a block of ``block``, or else a new ``segment``."""

    size: Size
    block: Size
    segment: Size
    kind: Kind


def planned(size: int, settings: Settings) -> Request:
    """Return what becomes of a request of ``size`` bytes.

    Raises `MisuseError` for less than one byte and for 1 EiB or more.
    """
    if not 0 < size < LARGEST:
        raise MisuseError(
            f"cannot allocate {size_text(size)} of pinned memory: ask for at least "
            f"1 byte and less than {size_text(LARGEST)}"
        )
    if not _is_exact(size, settings):
        block = Size(max(ALIGNMENT, 1 << (size - 1).bit_length()))
        return Request(Size(size), block, block, "whole")
    block = Size(align_up(size, ALIGNMENT))
    if block <= SMALL:
        return Request(Size(size), block, _SMALL_SEGMENT, "small")
    return Request(Size(size), block, Size(align_up(block, _PAGE)), "large")


def _is_exact(size: int, settings: Settings) -> bool:
    limits = settings.pinned_max_round_threshold, settings.pinned_max_cached_size
    return any(limit is not None and size > limit for limit in limits)


@dataclass(slots=True, eq=False)
class Segment:
    """Memory ``[address, address + size)`` as its source gave it."""

    address: Addr
    size: Size
    kind: Kind
    source: Source
    pool: PoolId


@dataclass(slots=True, eq=False)
class Block:
    """A part of a segment.

    ``users`` are the streams whose copies may use it, ``captured`` the pools that keep
    it because something that was recorded uses it.
    """

    address: Addr
    size: Size
    segment: Segment
    requested: Size
    users: set[StreamHandle] = field(default_factory=set)
    captured: set[PoolId] = field(default_factory=set)

    @property
    def end(self) -> Addr:
        """The first address behind it."""
        return Addr(self.address + self.size)

    def is_whole(self) -> bool:
        """Return whether its segment is never cut."""
        return self.segment.kind == "whole"


_UNROUTED = PoolId(-1, 0)
"""What keeps blocks that were recorded while nothing was routed, until the end."""


class Pool:
    """One pool and what it has free.

    ``uses`` counts the captures that it serves, ``routed`` the threads routed to it;
    ``_cut`` are the bytes of idle segments that blocks are cut from.
    """

    def __init__(self, id_: PoolId) -> None:
        self.id = id_
        self.uses = self.routed = 0
        # By kind, in order of size and address: the smallest that fits comes first.
        self._free: dict[Kind, list[tuple[Size, Addr, Block]]] = {}
        # The same by where they begin and end, for their neighbours.
        self._begins: dict[Addr, Block] = {}
        self._ends: dict[Addr, Block] = {}
        # Those that are all of their segments, the oldest first; the reserve is none.
        self._idle: dict[Addr, Block] = {}
        self._cut = Size(0)

    def take(self, request: Request) -> Block | None:
        """Return a block for a request, cut from a free one; None where none fits."""
        kinds: tuple[Kind, ...] = ("reserve", request.kind)
        for kind in kinds:
            free = self._free.get(kind, [])
            at = bisect_left(free, (request.block,))
            if at < len(free) and (kind != "whole" or free[at][0] == request.block):
                block = free[at][2]
                self._remove(block)
                return self.split(block, request)
        return None

    def put(self, block: Block, bound: Size | None = None) -> list[Segment]:
        """Take a block back; return the segments that are too much to keep.

        Those are a whole one larger than ``bound``, and the oldest of the cut ones as
        long as these have more idle bytes.
        """
        for other in (self._ends.get(block.address), self._begins.get(block.end)):
            if other is not None and other.segment is block.segment:
                self._remove(other)
                block.address = min(block.address, other.address)
                block.size = Size(block.size + other.size)
        self._add(block)
        if bound is None:
            return []
        surplus = [block] if block.is_whole() and block.size > bound else []
        spare: int = self._cut
        for each in self._idle.values():
            if spare <= bound:
                break
            if not each.is_whole():
                spare -= each.size
                surplus.append(each)
        return self._gone(surplus)

    def evict(self) -> list[Segment]:
        """Return all idle segments, which are gone from here."""
        return self._gone(list(self._idle.values()))

    def end(self) -> list[Segment]:
        """Do the same, for good: the reserve goes too, if it is idle."""
        return self._gone([each for each in self if each.size == each.segment.size])

    def adopt(self, other: Pool) -> None:
        """Take over all blocks of another pool."""
        for block in other:
            self._add(block)

    def __iter__(self) -> Iterator[Block]:
        return (block for free in self._free.values() for *_, block in free)

    def split(self, block: Block, request: Request) -> Block:
        """Return the front of a block that is not in here, and keep the rest."""
        rest = Size(block.size - request.block)
        if rest >= ALIGNMENT:
            block.size = request.block
            self._add(Block(block.end, rest, block.segment, rest))
        block.requested = request.size
        return block

    def _add(self, block: Block) -> None:
        segment = block.segment
        free = self._free.setdefault(segment.kind, [])
        insort(free, (block.size, block.address, block))
        self._begins[block.address] = self._ends[block.end] = block
        if segment.kind != "reserve" and block.size == segment.size:
            self._idle[block.address] = block
            self._cut = Size(self._cut + (0 if block.is_whole() else block.size))

    def _remove(self, block: Block) -> None:
        free = self._free[block.segment.kind]
        del free[bisect_left(free, (block.size, block.address))]
        del self._begins[block.address], self._ends[block.end]
        if self._idle.pop(block.address, None) is not None and not block.is_whole():
            self._cut = Size(self._cut - block.size)

    def _gone(self, blocks: list[Block]) -> list[Segment]:
        for block in blocks:
            self._remove(block)
        return [block.segment for block in blocks]


class _Routes(threading.local):
    """The pools that a thread is routed to, the last begun at the end."""

    def __init__(self) -> None:
        self.stack: list[Pool] = []


class Pools:
    """All pools of an allocator, and which one each thread allocates from."""

    def __init__(self) -> None:
        self.default = Pool(DEFAULT_POOL)
        self.all = {DEFAULT_POOL: self.default}
        self._routes = _Routes()

    def route(self) -> Pool | None:
        """Return the pool that this thread is routed to, the last begun."""
        stack = self._routes.stack
        return stack[-1] if stack else None

    def begin(self, id_: PoolId) -> None:
        """Route this thread to a pool, which is thereby used once more.

        Raises `MisuseError` for the default pool and where it is already.
        """
        stack = self._routes.stack
        if id_ in {DEFAULT_POOL, _UNROUTED}:
            raise MisuseError(f"pool {tuple(id_)} is nobody's own: begin another one")
        if any(each.id == id_ for each in stack):
            raise MisuseError(
                f"this thread is routed to pool {tuple(id_)} already: end it first"
            )
        pool = self.all.setdefault(id_, Pool(id_))
        pool.uses += 1
        pool.routed += 1
        stack.append(pool)

    def end(self, id_: PoolId) -> None:
        """End this thread's last route; raises `MisuseError` where it is another."""
        stack = self._routes.stack
        if not stack or stack[-1].id != id_:
            last = tuple(stack[-1].id) if stack else "none"
            raise MisuseError(
                f"pool {tuple(id_)} is not the last that this thread began, which is "
                f"{last}: end pools in the reverse order of beginning them"
            )
        stack.pop().routed -= 1

    def is_last_use(self, id_: PoolId) -> bool:
        """Return whether releasing a pool now would end it.

        Raises `MisuseError` where there is none, or it is still routed to.
        """
        pool = self.all.get(id_)
        if pool is None or pool is self.default:
            raise MisuseError(
                f"pool {tuple(id_)} is none of a capture: release one that was begun, "
                "once per begin"
            )
        if pool.uses == 1 and pool.routed:
            raise MisuseError(
                f"a thread is routed to pool {tuple(id_)}: end it before the release"
            )
        return pool.uses == 1

    def release(self, id_: PoolId) -> Pool | None:
        """End one use of a pool; return it where that was the last, and it is gone."""
        pool = self.all[id_]
        pool.uses -= 1
        return None if pool.uses else self.all.pop(id_)


class Stock:
    """Segments, their blocks, and the counters of both.

    ``live`` are the blocks that are handed out, by address. Whoever pops one, which
    any thread may do without the lock, is the one that frees it; `put` follows.
    """

    def __init__(self) -> None:
        self.live: dict[Addr, Block] = {}
        self._starts: list[Addr] = []  # of what is live, or was and is not put back
        self.pools = Pools()
        self.statistics = Statistics()
        self.segments: set[Segment] = set()
        self._kept: set[Block] = set()

    def pool(self) -> Pool:
        """Return the pool that this thread allocates from."""
        return self.pools.route() or self.pools.default

    def containing(self, address: Addr) -> Block | None:
        """Return the block in use that an address lies in, if any."""
        found = self.live.get(address)
        if found is None and (index := bisect_right(self._starts, address)):
            found = self.live.get(self._starts[index - 1])
        inside = found is not None and address < found.end
        return found if inside else None

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
            block.captured.add(_UNROUTED if route is None else route.id)
        else:
            block.users.add(stream)

    def is_recorded(self, id_: PoolId) -> bool:
        """Return whether a pool keeps blocks for what was captured."""
        return any(id_ in block.captured for block in self._used())

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
        for block in self._used():
            if id_ in block.captured:
                block.captured.remove(id_)
                block.users.update(after)
        loose = [block for block in self._kept if not block.captured]
        self._kept.difference_update(loose)
        return loose

    def forget(self, stream: StreamHandle, successor: StreamHandle) -> None:
        """Let a stream's copies count as those of its successor."""
        for block in self._used():
            if stream in block.users:
                block.users.remove(stream)
                block.users.add(successor)

    def _used(self) -> list[Block]:
        """Return the blocks that are handed out, or kept for recordings."""
        return [*self.live.values(), *self._kept]

    def _hand_out(self, block: Block) -> None:
        self.live[block.address] = block
        insort(self._starts, block.address)
        self.statistics.count_block(1, block.size, block.requested)

    def _put(self, block: Block, bound: Size | None) -> list[Segment]:
        del self._starts[bisect_left(self._starts, block.address)]
        self.statistics.count_block(-1, block.size, block.requested)
        pool = self.pools.all[block.segment.pool]
        return pool.put(block, bound if pool is self.pools.default else None)
