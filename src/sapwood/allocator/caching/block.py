"""Blocks and segments: what an allocator knows of every byte of its addresses.

The blocks of a segment tile it, and are linked in address order in a ring that a
*guard* closes, so that every block has two neighbours. Free neighbours are always
merged. `split` and `merge_next` keep the ring and the table of blocks; who is in
which index of free blocks is the caller's matter.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Final

from sapwood.allocator.caching.records.history import NO_STACK, Stack
from sapwood.driver.api import ExtentHandle, StreamHandle
from sapwood.errors import InternalError
from sapwood.units import Addr, Size

if TYPE_CHECKING:
    from sapwood.allocator.caching.bins import Bin
    from sapwood.allocator.caching.pools import SegmentSource


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
    """Cut a block after ``size`` bytes; return the rest, in the same state."""
    rest = Block(Addr(block.address + size), block.size - size, block.segment)
    rest.state = block.state
    rest.prev, rest.next = block, block.next
    rest.next.prev = block.next = rest
    block.size = size
    blocks[rest.address] = rest
    return rest


def merge_next(blocks: Blocks, block: Block) -> None:
    """Let a block take the place of its next neighbour, too."""
    gone = block.next
    block.size += gone.size
    block.next = gone.next
    block.next.prev = block
    del blocks[gone.address]
