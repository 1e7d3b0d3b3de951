"""Replaying a recording, and calls like the one before at once."""

from __future__ import annotations

__all__: list[str] = []
