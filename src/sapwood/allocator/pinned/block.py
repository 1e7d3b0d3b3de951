"""Segments of pinned memory, and the blocks that tile them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sapwood.allocator.caching.picture import PoolId
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.pinned.sources import Source
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
