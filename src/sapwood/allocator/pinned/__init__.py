"""Pinned host memory: cached, cut or in powers of two, and safe under copies."""

from sapwood.allocator.pinned.allocator import PinnedAllocator

__all__ = ["PinnedAllocator"]
