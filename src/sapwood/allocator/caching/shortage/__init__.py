"""Why memory ran out, who holds it, and what would have fitted."""

from __future__ import annotations

__all__: list[str] = []
