"""Nests of containers: taken apart into leaves, and put together again."""

from __future__ import annotations

__all__: list[str] = []
