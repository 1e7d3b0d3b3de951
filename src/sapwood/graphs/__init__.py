"""Recordings as data, and recordings as the driver runs them."""

from __future__ import annotations

__all__: list[str] = []
