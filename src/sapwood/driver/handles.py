"""Tables from handles to what they stand for.

What is not in its table was never given out here, or was given back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar, cast

from sapwood.driver.results import Refusal, Result

H = TypeVar("H", bound=int)
V = TypeVar("V")


class Table(Generic[H, V]):
    """What the live handles of one kind stand for."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.values: dict[H, V] = {}

    def put(self, handle: H, value: V) -> H:
        """Let a handle stand for ``value``."""
        self.values[handle] = value
        return handle

    def find(self, handle: H) -> V:
        """Return what a live handle stands for."""
        try:
            return self.values[handle]
        except KeyError:
            raise self._unknown(handle) from None

    def take(self, handle: H) -> V:
        """Return what a live handle stands for, and end the handle."""
        try:
            return self.values.pop(handle)
        except KeyError:
            raise self._unknown(handle) from None

    def __len__(self) -> int:
        return len(self.values)

    def _unknown(self, handle: H) -> Refusal:
        return Result.INVALID_HANDLE.refusal(
            f"{self._kind} {handle:#x} does not exist, or no longer: use handles of "
            "this device, and give each back once, after its last use"
        )


class Counted(Table[H, V]):
    """A table that makes its handles: numbers that it counts out.

    Where all tables of a device count with one counter, a handle of one kind is never
    taken for another's.
    """

    def __init__(self, kind: str, handles: Iterator[int]) -> None:
        super().__init__(kind)
        self._handles = handles

    def add(self, value: V) -> H:
        """Return a new handle for ``value``."""
        return self.put(cast("H", next(self._handles)), value)
