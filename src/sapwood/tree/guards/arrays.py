"""What is asked of a framework about its arrays."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Protocol


class Arrays(Protocol):
    """What the walk asks of a framework."""

    def surroundings(self) -> Iterable[tuple[str, object]]:
        """Return what every function reads of the framework, by its path."""

    def is_array(self, value: object) -> bool:
        """Return whether a value is a device array, which is not looked into."""

    def look(self, array: Any) -> Any:
        """Return an array's layout, and where it is: see `call.integration.Look`."""


def layout_of(arrays: Arrays, array: Any) -> Hashable:
    """Return an array's layout; one that was revoked has none, and may lie around."""
    look = arrays.look(array)
    found: Hashable = "stale" if look.storage.stale is not None else look.layout
    return found
