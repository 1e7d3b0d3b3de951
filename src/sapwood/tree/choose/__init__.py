"""Which recording fits a call, and what to do where none does."""

from __future__ import annotations

__all__: list[str] = []
