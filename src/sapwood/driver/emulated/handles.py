"""Handles of the emulated device: numbers that it counts out.

All tables of a device count with one counter, so that a handle of one kind is never
taken for another's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar, cast

from sapwood.driver.handles import Table

H = TypeVar("H", bound=int)
V = TypeVar("V")


class Counted(Table[H, V]):
    """A table that makes its handles."""

    __slots__ = ("_handles",)

    def __init__(self, kind: str, handles: Iterator[int]) -> None:
        super().__init__(kind)
        self._handles = handles

    def add(self, value: V) -> H:
        """Return a new handle for ``value``."""
        return self.put(cast("H", next(self._handles)), value)
