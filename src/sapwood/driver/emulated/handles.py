"""Handles of the emulated device: numbers that it counts out.

All tables of a device count with one counter, so that a handle of one kind is never
taken for another's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from sapwood.driver.handles import Table

H = TypeVar("H", bound=int)
V = TypeVar("V")


class Counted(Table[H, V]):
    """A table that makes its handles."""

    __slots__ = ("_handles", "_new")

    def __init__(
        self, kind: str, new: Callable[[int], H], handles: Iterator[int]
    ) -> None:
        super().__init__(kind)
        self._new, self._handles = new, handles

    def add(self, value: V) -> H:
        """Return a new handle for ``value``."""
        return self.put(self._new(next(self._handles)), value)
