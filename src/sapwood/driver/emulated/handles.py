"""Tables from handles to what they stand for.

All tables of a device count with one counter, so that a handle of one kind is never
taken for another's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from sapwood.driver.results import Refusal, Result

__all__ = ["Table"]

H = TypeVar("H", bound=int)
V = TypeVar("V")


class Table(Generic[H, V]):
    """What the live handles of one kind stand for."""

    __slots__ = ("_handles", "_kind", "_new", "values")

    def __init__(
        self, kind: str, new: Callable[[int], H], handles: Iterator[int]
    ) -> None:
        self._kind, self._new, self._handles = kind, new, handles
        self.values: dict[H, V] = {}

    def add(self, value: V) -> H:
        """Return a new handle for ``value``."""
        handle = self._new(next(self._handles))
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
        return Refusal(
            Result.INVALID_HANDLE,
            f"{self._kind} {handle} does not exist, or no longer: use handles of this "
            "device, and give each back once, after its last use",
        )
