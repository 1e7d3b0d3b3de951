"""A store in this process: the nearest of several tiers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Lock
from typing import Final

from sapwood import knobs
from sapwood.persist.api import Item, check_name, incomplete, too_large
from sapwood.persist.evict import Want, victims
from sapwood.persist.key import needs
from sapwood.units import Size

_ROOM: Final = 256 << 20


class MemoryStore:
    """Keeps values in memory, of ``limit`` bytes in all; they end with the process.

    The limit may be text, such as ``64MiB``. Raises `MisuseError` for another value.
    """

    def __init__(self, limit: int | str = _ROOM) -> None:
        self.limit = knobs.limit("limit", limit, "one byte") or Size(_ROOM)
        self._values: dict[str, bytes] = {}
        self._used: dict[str, int] = {}
        self._blobs: dict[str, dict[str, Size]] = {}  # those that manifests name
        self._size = 0
        self._lock = Lock()

    def get(self, name: str) -> bytes | None:
        check_name(name)
        with self._lock:
            if name in self._values:
                self._used[name] = time.time_ns()
            return self._values.get(name)

    def put(self, name: str, value: bytes) -> None:
        check_name(name)
        blobs = needs(name, value)
        whole = len(value) + sum(blobs.values())
        if whole > self.limit:
            raise too_large(name, whole, self.limit)
        with self._lock:
            self._forget(name)
            if not blobs.keys() <= self._values.keys():
                raise incomplete(name)
            self._values[name], self._used[name] = bytes(value), time.time_ns()
            self._blobs[name] = blobs
            self._size += len(value)
            self._make_room(name)

    def delete(self, name: str) -> bool:
        check_name(name)
        with self._lock:
            return self._forget(name)

    def scan(self) -> Iterator[Item]:
        with self._lock:
            items = self._items()
        yield from items

    def _items(self) -> list[Item]:
        return [
            Item(name, Size(len(value)), self._used[name])
            for name, value in self._values.items()
        ]

    def _make_room(self, name: str) -> None:
        """Let go what was used longest ago; ``name`` is what was put just now."""
        want = Want.of(self._size, self.limit)
        if want.must:
            others = [item for item in self._items() if item.name != name]
            for group in victims(others, self._blobs, want, time.time_ns()):
                for gone in group:
                    self._forget(gone)

    def _forget(self, name: str) -> bool:
        value = self._values.pop(name, None)
        if value is None:
            return False
        self._size -= len(value)
        del self._blobs[name], self._used[name]
        return True
