"""How a function is graphed."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """How a function is graphed, as the user said.

    ``tolerant`` functions run eagerly where they cannot be recorded.
    """

    name: str
    donate: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    max_variants: int = 4
    max_recordings: int = 64
    tolerant: bool = False
    verify: int = 0
