"""An allocator as data for others: pictures, our JSON, PyTorch's snapshots."""

from __future__ import annotations

__all__: list[str] = []
