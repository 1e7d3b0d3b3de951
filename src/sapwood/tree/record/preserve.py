"""Device memory saved and restored, so that something can be run for its own sake."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Any

from sapwood.memory.device import Device
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Integration
from sapwood.tree.nests.containers import constant_key


class Preserved:
    """Copies of some storages, made in stream order."""

    def __init__(self, device: Device, storages: Iterable[Storage]) -> None:
        self.device = device
        self._copies = [
            (storage, device.allocate_on_heap(storage.size, device.stream()))
            for storage in {id(storage): storage for storage in storages}.values()
        ]

    def save(self) -> Preserved:
        """Copy the storages as they are now."""
        for storage, copy in self._copies:
            self._copy(storage, copy)
        return self

    def restore(self, some: Collection[Storage] | None = None) -> None:
        """Put the bytes back that were saved: all, or those of some storages."""
        for storage, copy in self._copies:
            if some is None or storage in some:
                self._copy(copy, storage)

    def differing(self) -> list[Storage]:
        """Return the storages whose bytes are not those that were saved.

        What nobody may use any more, as it was donated, has none that count.
        """
        usable = [(each, copy) for each, copy in self._copies if each.stale is None]
        return [s for s, copy in usable if self._bytes(s) != self._bytes(copy)]

    def _copy(self, source: Storage, target: Storage) -> None:
        stream = self.device.stream()
        source.order_read(stream)
        target.order_write(stream)
        if source.size:
            self.device.driver.copy(
                target.address, source.address, source.size, stream.handle
            )

    def _bytes(self, storage: Storage) -> bytes:
        stream = self.device.stream()
        storage.order_read(stream)
        if not storage.size:
            return b""
        driver = self.device.driver
        return bytes(driver.download(storage.address, storage.size, stream.handle))


def bits_of(leaf: Any, integration: Integration) -> Hashable:
    """Return what tells a leaf from others: an array's look and bits, or its value."""
    if integration.is_array(leaf):
        return integration.layout(leaf), integration.bits(leaf)
    return constant_key(leaf)
