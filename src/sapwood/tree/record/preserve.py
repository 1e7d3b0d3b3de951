"""Device memory saved and restored, so that something can be run for its own sake."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import accumulate
from typing import Any, Final, NamedTuple

from sapwood.memory.device import Device
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Integration
from sapwood.tree.nests.containers import constant_key
from sapwood.units import Addr, Size

_ALIGNED: Final = 256


class Preserved:
    """Copies of some storages, made in stream order."""

    def __init__(self, device: Device, storages: Iterable[Storage]) -> None:
        self.device = device
        one = [*{id(storage): storage for storage in storages}.values()]
        room = [-(-storage.size // _ALIGNED) * _ALIGNED for storage in one]
        self._block = device.allocate_on_heap(Size(sum(room)), device.stream())
        places = accumulate(room, initial=self._block.address)
        self._copies = [*zip(one, map(Addr, places), strict=False)]

    def save(self) -> Preserved:
        """Copy the storages as they are now."""
        self._block.order_write(self.device.stream())
        for storage, copy in self._copies:
            storage.order_read(self.device.stream())
            self._copy(copy, storage.address, storage.size)
        return self

    def __contains__(self, storage: Storage) -> bool:
        return any(each is storage for each, _ in self._copies)

    def restore(self) -> None:
        """Put the bytes back that were saved."""
        self._block.order_read(self.device.stream())
        for storage, copy in self._copies:
            storage.order_write(self.device.stream())
            self._copy(storage.address, copy, storage.size)

    def differing(self) -> list[Storage]:
        """Return the storages whose bytes are not those that were saved.

        What nobody may use any more, as it was donated, has none that count.
        """
        usable = [(each, copy) for each, copy in self._copies if each.stale is None]
        return [
            each
            for each, copy in usable
            if _bytes(self.device, each, each.address, each.size)
            != _bytes(self.device, self._block, copy, each.size)
        ]

    def _copy(self, target: Addr, source: Addr, size: Size) -> None:
        if size:
            self.device.driver.copy(target, source, size, self.device.stream().handle)


class Bits(NamedTuple):
    """What tells values apart to the bit, arrays of a device among them."""

    integration: Integration
    device: Device

    def of(self, leaf: Any) -> Hashable:
        """Return what tells a leaf from others: an array's look and bits, or its value.

        Waits for the bits. Raises `StaleOutput`.
        """
        if not self.integration.is_array(leaf):
            return constant_key(leaf)
        layout, storage, _ = look = self.integration.look(leaf).checked()
        start, end = look.span
        data = _bytes(self.device, storage, start, Size(end - start))
        return layout, layout.packed(data)


def _bytes(device: Device, storage: Storage, start: Addr, size: Size) -> bytes:
    if not size:
        return b""
    stream = device.stream()
    storage.order_read(stream)
    return bytes(device.driver.download(start, size, stream.handle))
