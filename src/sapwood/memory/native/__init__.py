"""Segments that C serves, for libraries that must not be called back into Python."""

from __future__ import annotations

from sapwood.memory.native.segments import (
    Request,
    SegmentCounters,
    Segments,
    open_segments,
)

__all__ = [
    "Request",
    "SegmentCounters",
    "Segments",
    "open_segments",
]
