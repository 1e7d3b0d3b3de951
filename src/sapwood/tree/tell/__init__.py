"""What is told of the calls of a function: counts, misses, and why."""

from __future__ import annotations

__all__: list[str] = []
