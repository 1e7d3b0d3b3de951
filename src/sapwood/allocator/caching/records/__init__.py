"""What happened, and how often: counters, statistics, history."""

from __future__ import annotations

__all__: list[str] = []
