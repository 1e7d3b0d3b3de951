"""An allocator's state as plain values, at one moment.

Whatever explains, draws, validates or exports an allocator reads a `Picture`.
Intervals are half-open, sizes bytes, addresses integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sapwood.driver.api import StreamHandle
from sapwood.units import Addr, Size

SizeClass = Literal["small", "large"]

BlockState = Literal["allocated", "pending", "free", "unmapped"]
"""``pending``: freed by its holder, but work on other streams may still use it."""

Action = Literal[
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
]


class PoolId(NamedTuple):
    """Who a pool belongs to: ``(n, 0)`` a capture, ``(0, n)`` a user."""

    capture: int
    user: int


DEFAULT_POOL = PoolId(0, 0)


class Frame(NamedTuple):
    """One line of a Python stack, innermost first."""

    filename: str
    line: int
    name: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of the history.

    ``size`` is what was asked for in ``alloc`` and the ``free`` events, the driver's
    size in segment events, the rounded request in ``oom``. ``address`` is the free
    device memory in ``oom``. ``time_us`` are microseconds since the epoch.
    """

    action: Action
    address: Addr
    size: Size
    stream: StreamHandle
    time_us: int
    pool: PoolId = DEFAULT_POOL
    frames: tuple[Frame, ...] = ()
    annotation: str = ""


@dataclass(frozen=True, slots=True)
class BlockPicture:
    """One block; ``users`` are the other streams that it was recorded on."""

    address: Addr
    size: Size
    requested: Size
    state: BlockState
    users: tuple[StreamHandle, ...] = ()
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class SegmentPicture:
    """One segment and its blocks, which tile it in address order.

    ``size`` are the addresses of it; an expandable segment has ``unmapped`` blocks.
    ``extents`` are the pieces of physical memory mapped in it, as (address, size).
    """

    address: Addr
    size: Size
    stream: StreamHandle
    size_class: SizeClass
    pool: PoolId
    expandable: bool
    blocks: tuple[BlockPicture, ...]
    extents: tuple[tuple[Addr, Size], ...]
    frames: tuple[Frame, ...] = ()


Placed = tuple[SegmentPicture, BlockPicture]


@dataclass(frozen=True, slots=True)
class PoolPicture:
    """One pool: how often it is in use, and its rules."""

    id: PoolId
    use_count: int
    no_split: bool = False
    use_on_oom: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """An allocator at one moment.

    ``total`` and ``free`` are the device's bytes, ``limit`` what this allocator may
    reserve of them. ``settings`` are in the spelling of the environment variable.
    """

    device: int
    total: Size
    free: Size
    limit: Size
    segments: tuple[SegmentPicture, ...]
    pools: tuple[PoolPicture, ...]
    settings: Mapping[str, object] = field(default_factory=dict)
    history: tuple[Entry, ...] = ()

    def blocks(self, *states: BlockState) -> Iterator[Placed]:
        """Yield the blocks in some states, each behind the segment that it lies in."""
        for segment in self.segments:
            for block in segment.blocks:
                if block.state in states:
                    yield segment, block

    def bytes(self, state: BlockState) -> Size:
        """Return the bytes of all blocks in a state."""
        return Size(sum(block.size for _, block in self.blocks(state)))
