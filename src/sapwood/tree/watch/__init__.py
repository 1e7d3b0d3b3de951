"""Running a function while it is watched: as a warm-up, or captured."""

from __future__ import annotations

__all__: list[str] = []
