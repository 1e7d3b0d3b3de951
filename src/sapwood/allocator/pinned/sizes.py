"""What a request for pinned memory becomes: its block, and the segment for a miss.

Decided by the settings alone. Powers of two are found again by others and never split;
exact blocks are cut from segments and merge into them again.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from sapwood.allocator.caching.settings import Settings
from sapwood.errors import MisuseError
from sapwood.units import Size, align_up, size_text

__all__ = ["ALIGNMENT", "LARGEST", "SMALL", "Kind", "Request", "planned"]

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
