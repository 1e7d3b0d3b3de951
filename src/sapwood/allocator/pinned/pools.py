"""Pools of pinned memory for captures: what a recording uses is kept for its replays.

A pool exists from its first use to the release of the last. Blocks that nothing
recorded uses go round in it as elsewhere.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Iterator

from sapwood.allocator.caching.picture import DEFAULT_POOL, PoolId
from sapwood.allocator.pinned.block import ALIGNMENT, Block, Kind, Request, Segment
from sapwood.errors import MisuseError
from sapwood.units import Addr, Size

UNROUTED = PoolId(-1, 0)
"""What keeps blocks that were recorded while nothing was routed, until the end."""


class Pool:
    """One pool and what it has free.

    ``uses`` counts the captures that it serves, ``routed`` the threads routed to it;
    ``idle`` are the bytes of idle segments that are cut.
    """

    def __init__(self, id_: PoolId) -> None:
        self.id = id_
        self.uses = self.routed = 0
        # By kind, in order of size and address: the smallest that fits comes first.
        self._free: dict[Kind, list[tuple[Size, Addr, Block]]] = {}
        self._cut: dict[Addr, Block] = {}
        self._whole: dict[Addr, Block] = {}
        self.idle = Size(0)

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
        block.free = True
        for other in (block.before, block.behind):
            if other is not None and other.free:
                self._remove(other)
                block = _merged(block, other)
        self._add(block)
        if bound is None:
            return []
        surplus = [block] if block.address in self._whole and block.size > bound else []
        spare = self.idle
        for each in self._cut.values():
            if spare <= bound:
                break
            spare = Size(spare - each.size)
            surplus.append(each)
        return self._gone(surplus)

    def evict(self) -> list[Segment]:
        """Return all idle segments, which are gone from here."""
        return self._gone([*self._cut.values(), *self._whole.values()])

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
        block.free, block.requested = False, request.size
        rest = Size(block.size - request.block)
        if rest >= ALIGNMENT:
            tail = Block(Addr(block.address + request.block), rest, block.segment, rest)
            tail.before, tail.behind = block, block.behind
            if tail.behind is not None:
                tail.behind.before = tail
            block.size, block.behind = request.block, tail
            self._add(tail)
        return block

    def _add(self, block: Block) -> None:
        segment = block.segment
        free = self._free.setdefault(segment.kind, [])
        insort(free, (block.size, block.address, block))
        if segment.kind == "whole":
            self._whole[block.address] = block
        elif segment.kind != "reserve" and block.size == segment.size:
            self._cut[block.address] = block
            self.idle = Size(self.idle + block.size)

    def _remove(self, block: Block) -> None:
        free = self._free[block.segment.kind]
        del free[bisect_left(free, (block.size, block.address))]
        self._whole.pop(block.address, None)
        if self._cut.pop(block.address, None) is not None:
            self.idle = Size(self.idle - block.size)

    def _gone(self, blocks: list[Block]) -> list[Segment]:
        for block in blocks:
            self._remove(block)
        return [block.segment for block in blocks]


def _merged(one: Block, other: Block) -> Block:
    """Return the earlier of two neighbours, which has become both."""
    first, second = (one, other) if one.address < other.address else (other, one)
    first.size = Size(first.size + second.size)
    first.behind = second.behind
    if second.behind is not None:
        second.behind.before = first
    first.free = True
    return first


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
        if id_ in {DEFAULT_POOL, UNROUTED}:
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
