"""What is asked of a framework about its arrays."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Protocol

from sapwood.errors import StaleOutput


class Arrays(Protocol):
    """What the walk asks of a framework."""

    def surroundings(self) -> Iterable[tuple[str, object]]:
        """Return what every function reads of the framework, by its path."""
        ...

    def is_array(self, value: object) -> bool:
        """Return whether a value is a device array, which is not looked into."""
        ...

    def layout(self, array: Any) -> Hashable:
        """Return all that tells two arrays apart but their addresses."""
        ...

    def address(self, array: Any) -> int:
        """Return where the array's first element lies."""
        ...


def layout_of(arrays: Arrays, array: Any) -> Hashable:
    """Return an array's layout; one that was revoked has none, and may lie around."""
    try:
        return arrays.layout(array)
    except StaleOutput:
        return "stale"
