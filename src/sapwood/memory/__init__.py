"""Pages and ranges for recordings, a heap for eager arrays, over one driver."""

from __future__ import annotations

__all__: list[str] = []
