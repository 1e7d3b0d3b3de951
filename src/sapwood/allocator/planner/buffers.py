"""What is to be packed: buffers with known lifetimes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sapwood.errors import MisuseError
from sapwood.units import Size

__all__ = ["Buffer", "check_alignment", "check_buffers"]


class Buffer(NamedTuple):
    """``size`` bytes that are in use in ``[lower, upper)``; times are any integers."""

    lower: int
    upper: int
    size: Size


def check_buffers(buffers: Iterable[Buffer]) -> None:
    """Raise `MisuseError` for the first buffer without a lifetime, or below 0 bytes."""
    for number, (lower, upper, size) in enumerate(buffers):
        if lower >= upper:
            raise MisuseError(
                f"buffer {number} is alive in [{lower}, {upper}), which is empty. Give "
                "an upper above its lower"
            )
        if size < 0:
            raise MisuseError(f"buffer {number} has {size} bytes. Give a size from 0")


def check_alignment(alignment: int) -> None:
    """Raise `MisuseError` for an alignment that is no whole number from 1."""
    if alignment < 1:
        raise MisuseError(f"alignment is {alignment}. Give a whole number from 1")
