"""A store in this process's memory, which goes with the process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Lock

from sapwood.persist.api import Item, check_name, incomplete, too_large
from sapwood.persist.evict import Want, victims
from sapwood.persist.key import needs
from sapwood.units import Size


class MemoryStore:
    """Keeps at most ``limit`` bytes of values."""

    def __init__(self, limit: int) -> None:
        self.limit = Size(limit)
        self._values: dict[str, bytes] = {}
        self._used: dict[str, int] = {}
        self._needs: dict[str, dict[str, Size]] = {}
        self._lock = Lock()

    def get(self, name: str) -> bytes | None:
        check_name(name)
        with self._lock:
            value = self._values.get(name)
            if value is not None:
                self._used[name] = time.time_ns()
        return value

    def put(self, name: str, value: bytes) -> None:
        check_name(name)
        blobs = needs(name, value)
        whole = len(value) + sum(blobs.values())
        if whole > self.limit:
            raise too_large(name, whole, self.limit)
        with self._lock:
            self._forget(name)
            self._needs[name] = blobs
            self._make_room(len(value))
            if not blobs.keys() <= self._values.keys():
                self._forget(name)
                raise incomplete(name)
            self._values[name] = bytes(value)
            self._used[name] = time.time_ns()

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

    def _make_room(self, size: int) -> None:
        items = self._items()
        want = Want.of(sum(item.size for item in items) + size, self.limit)
        for group in victims(items, self._needs, want, time.time_ns()):
            for name in group:
                self._forget(name)

    def _forget(self, name: str) -> bool:
        self._used.pop(name, None)
        self._needs.pop(name, None)
        return self._values.pop(name, None) is not None
