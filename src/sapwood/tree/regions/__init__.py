"""Functions with eager regions: recorded and replayed as chains of parts."""

from __future__ import annotations

__all__: list[str] = []
