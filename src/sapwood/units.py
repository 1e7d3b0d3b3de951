"""Integers named by what they mean, alignment, and sizes as text.

Sizes are bytes, intervals are half-open, addresses print as hex.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NewType

Addr = NewType("Addr", int)
"""A device (or pinned host) address."""

Size = NewType("Size", int)
"""A number of bytes."""

Mask = NewType("Mask", int)
"""A set of physical pages: bit *n* is page number *n*."""


def align_down(value: int, to: int) -> int:
    """Return the largest multiple of ``to`` that is not above ``value``."""
    return value - value % to


def align_up(value: int, to: int) -> int:
    """Return the smallest multiple of ``to`` that is not below ``value``."""
    return -(-value // to) * to


def hex_address(address: int) -> str:
    """Return ``address`` as people read addresses: ``0x6000_0020_0000``."""
    return f"{address:#_x}"


def interval_text(lo: int, hi: int) -> str:
    """Return an interval of addresses as text."""
    return f"[{hex_address(lo)}, {hex_address(hi)})"


def count_text(number: int, thing: str) -> str:
    """Return how many things there are: ``1 page``, ``2 pages``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def size_text(size: int) -> str:
    """Return ``size`` in bytes as short text, in binary units: ``1.5 MiB``."""
    if abs(size) < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if abs(value) < 1024 or unit == "TiB":
            break
    return f"{value:.1f} {unit}".replace(".0 ", " ")


def touching(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans ``(first, count)``, given in order, those that touch as one."""
    found: list[tuple[int, int]] = []
    for first, count in spans:
        if found and found[-1][0] + found[-1][1] == first:
            found[-1] = (found[-1][0], found[-1][1] + count)
        else:
            found.append((first, count))
    return found
