"""A recording in the tree: what it may be replayed on, and what it returns."""

from __future__ import annotations

__all__: list[str] = []
