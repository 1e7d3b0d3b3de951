"""Tables from handles to what they stand for.

What is not in its table was never given out here, or was given back.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from sapwood.driver.results import Refusal, Result

H = TypeVar("H", bound=int)
V = TypeVar("V")


class Table(Generic[H, V]):
    """What the live handles of one kind stand for."""

    __slots__ = ("_kind", "values")

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
        return Refusal(
            Result.INVALID_HANDLE,
            f"{self._kind} {handle:#x} does not exist, or no longer: use handles of "
            "this device, and give each back once, after its last use",
        )
