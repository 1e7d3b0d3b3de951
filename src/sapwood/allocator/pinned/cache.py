"""The free blocks of one pool: powers of two by size, others by best fit.

Blocks that are cut merge with free neighbours as soon as they come back. A segment of
which nothing is in use is idle, and can go; the reserve never does.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from sapwood.allocator.pinned.block import Block, Segment
from sapwood.allocator.pinned.sizes import ALIGNMENT, Kind, Request
from sapwood.units import Addr, Size

__all__ = ["Cache"]


class Cache:
    """What a pool has free; ``idle`` are the bytes of idle segments that are cut."""

    def __init__(self) -> None:
        self._shelves: dict[tuple[Kind, Size], _Shelf] = {}
        self._cut: dict[Addr, Block] = {}
        self._whole: dict[Addr, Block] = {}
        self.free, self.idle = Size(0), Size(0)

    def take(self, request: Request) -> Block | None:
        """Return a block for a request, cut from a free one; None where none fits."""
        kinds: tuple[Kind, ...] = ("reserve", request.kind)
        for kind in kinds:
            shelf = self._shelves.get(_place(kind, request.block))
            block = None if shelf is None else shelf.best(request.block)
            if block is not None:
                self._remove(block)
                return self._split(block, request)
        return None

    def first(self, segment: Segment, request: Request) -> Block:
        """Return a block for a request, cut from a new segment."""
        whole = Block(segment.address, segment.size, segment, segment.size)
        return self._split(whole, request)

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
        return [self._gone(each) for each in surplus]

    def evict(self) -> list[Segment]:
        """Return all idle segments, which are gone from here."""
        idle = (*self._cut.values(), *self._whole.values())
        return [self._gone(each) for each in idle]

    def end(self) -> list[Segment]:
        """Do the same, for good: the reserve goes too, if it is idle."""
        idle = [each for each in self if each.size == each.segment.size]
        return [self._gone(each) for each in idle]

    def adopt(self, other: Cache) -> None:
        """Take over all blocks of another pool."""
        for block in other:
            self._add(block)

    def __iter__(self) -> Iterator[Block]:
        for shelf in self._shelves.values():
            yield from shelf.blocks.values()

    def _split(self, block: Block, request: Request) -> Block:
        """Return the front of a block that is in no shelf, and keep the rest."""
        block.free, block.requested = False, request.size
        rest = Size(block.size - request.block)
        if rest >= ALIGNMENT:
            address = Addr(block.address + request.block)
            tail = Block(address, rest, block.segment, rest)
            tail.before, tail.behind = block, block.behind
            if tail.behind is not None:
                tail.behind.before = tail
            block.size, block.behind = request.block, tail
            self._add(tail)
        return block

    def _add(self, block: Block) -> None:
        segment = block.segment
        place = _place(segment.kind, block.size)
        self._shelves.setdefault(place, _Shelf()).add(block)
        self.free = Size(self.free + block.size)
        if segment.kind == "whole":
            self._whole[block.address] = block
        elif segment.kind != "reserve" and block.size == segment.size:
            self._cut[block.address] = block
            self.idle = Size(self.idle + block.size)

    def _remove(self, block: Block) -> None:
        place = _place(block.segment.kind, block.size)
        self._shelves[place].remove(block)
        if not self._shelves[place].blocks:
            del self._shelves[place]
        self.free = Size(self.free - block.size)
        self._whole.pop(block.address, None)
        if self._cut.pop(block.address, None) is not None:
            self.idle = Size(self.idle - block.size)

    def _gone(self, block: Block) -> Segment:
        self._remove(block)
        return block.segment


class _Shelf:
    """Free blocks, of which the smallest that fits is found first."""

    def __init__(self) -> None:
        self.blocks: dict[Addr, Block] = {}
        self._sorted: list[tuple[Size, Addr]] = []

    def add(self, block: Block) -> None:
        insort(self._sorted, (block.size, block.address))
        self.blocks[block.address] = block

    def remove(self, block: Block) -> None:
        del self._sorted[bisect_left(self._sorted, (block.size, block.address))]
        del self.blocks[block.address]

    def best(self, size: Size) -> Block | None:
        index = bisect_left(self._sorted, (size, Addr(0)))
        if index == len(self._sorted):
            return None
        return self.blocks[self._sorted[index][1]]


def _place(kind: Kind, size: Size) -> tuple[Kind, Size]:
    """Return the shelf of a block: one per size where blocks are not cut."""
    return kind, size if kind == "whole" else Size(0)


def _merged(one: Block, other: Block) -> Block:
    """Return the earlier of two neighbours, which has become both."""
    first, second = (one, other) if one.address < other.address else (other, one)
    first.size = Size(first.size + second.size)
    first.behind = second.behind
    if second.behind is not None:
        second.behind.before = first
    first.free = True
    return first
