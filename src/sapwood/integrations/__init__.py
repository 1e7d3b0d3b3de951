"""One framework each, imported only with its framework."""

from __future__ import annotations

__all__: list[str] = []
