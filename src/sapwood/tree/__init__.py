"""Which recording fits a call, and everything that follows from the answer."""

from __future__ import annotations

__all__: list[str] = []
