"""Segments of pinned memory, and the blocks that tile them."""

from __future__ import annotations

from dataclasses import dataclass, field

from sapwood.allocator.caching.picture import PoolId
from sapwood.allocator.pinned.sizes import Kind
from sapwood.allocator.pinned.sources import Source
from sapwood.driver.api import StreamHandle
from sapwood.units import Addr, Size

__all__ = ["Block", "Segment"]


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
    """A part of a segment; ``before`` and ``behind`` are its neighbours there.

    ``users`` are the streams whose copies may use it, ``captured`` the pools that keep
    it because something that was recorded uses it.
    """

    address: Addr
    size: Size
    segment: Segment
    requested: Size
    free: bool = True
    users: set[StreamHandle] = field(default_factory=set)
    captured: set[PoolId] = field(default_factory=set)
    before: Block | None = None
    behind: Block | None = None
