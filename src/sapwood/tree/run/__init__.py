"""One graphed function's calls: warmed up, recorded, replayed, or run eagerly."""

from __future__ import annotations

__all__: list[str] = []
