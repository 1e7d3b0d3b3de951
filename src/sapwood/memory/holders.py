"""Who holds the memory of a runtime, by name, and what helps where too little is left.

A remedy is named only where it fits: nobody is told to drop what is not there.
"""

from __future__ import annotations

from typing import Final

from sapwood.errors import OutOfMemory
from sapwood.units import size_text

__all__ = ["EAGER", "LIVE", "RECORDED", "UNFINISHED", "Holders", "out_of_memory"]

Holders = tuple[tuple[str, int], ...]
"""Names, and how many bytes each holds."""

EAGER: Final = "eager arrays"
LIVE: Final = "live outputs"
RECORDED: Final = "outputs and temporaries of"
"""So names begin of what a recording holds; the recording's own follows."""
UNFINISHED: Final = "a recording in the making"

_HELPS: Final = {
    EAGER: "drop arrays that nobody needs",
    LIVE: "drop outputs that are kept",
    RECORDED: "lower max_recordings or max_variants",
}


def out_of_memory(
    call: str, *, asked: int, free: int, holders: Holders, limit: int | None
) -> OutOfMemory:
    """Return the error of a runtime that cannot give ``asked`` bytes."""
    remedy = _remedy(asked, holders, limit)
    return OutOfMemory(call, asked=asked, free=free, holders=holders, remedy=remedy)


def _remedy(asked: int, holders: Holders, limit: int | None) -> str:
    if limit is not None and asked > limit:
        return f"Ask for less at once, or raise memory_limit, {size_text(limit)} now"
    helps = [
        what
        for name, what in _HELPS.items()
        if any(who.startswith(name) for who, _ in holders)
    ]
    helps.append("ask for less at once" if limit is None else "raise memory_limit")
    *before, last = helps
    said = f"{', '.join(before)}, or {last}" if before else last
    return said[0].upper() + said[1:]
