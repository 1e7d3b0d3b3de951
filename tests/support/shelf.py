"""A store in memory, as small as one of a user's can be."""

from __future__ import annotations

from collections.abc import Iterator

from sapwood.persist.api import Item
from sapwood.units import Size

__all__ = ["Shelf"]


class Shelf:
    """Keeps ``values`` by name, all of them, those used last at the end."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def get(self, name: str) -> bytes | None:
        """Return what was put under a name, or None; this is a use of it."""
        if name in self.values:
            self.values[name] = self.values.pop(name)
        return self.values.get(name)

    def put(self, name: str, value: bytes) -> None:
        """Keep a value under a name."""
        self.delete(name)
        self.values[name] = value

    def delete(self, name: str) -> bool:
        """Forget a name; return whether there was anything to forget."""
        return self.values.pop(name, None) is not None

    def scan(self) -> Iterator[Item]:
        """Yield what is here, the longest unused first."""
        for used, (name, value) in enumerate(list(self.values.items())):
            yield Item(name, Size(len(value)), used)
