"""Builds and owns everything; loads integrations by name."""

from __future__ import annotations

__all__: list[str] = []
