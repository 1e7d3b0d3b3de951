"""Recordings as data: what object files and bundles hold."""

from __future__ import annotations

__all__: list[str] = []
