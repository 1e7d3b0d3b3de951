"""Copying outputs out: those that lie together go together, in one allocation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from sapwood.driver.streams import Stream
from sapwood.memory.device import Device
from sapwood.memory.storage import Storage
from sapwood.tree.node.outputs import Bytes
from sapwood.units import Addr, Size

SMALL: Final = Size(64 << 10)
"""Larger outputs go alone: whoever keeps one would keep the others' memory."""

_GAP: Final = Size(4 << 10)
"""How far apart those are at the most that go together."""


class Ferry(NamedTuple):
    """Bytes that are copied out at once, and which of the new storages lie there."""

    start: Addr
    size: Size
    storages: tuple[int, ...]


class _Part:
    """The token of a storage that has a part of a block."""

    __slots__ = ("block",)

    def __init__(self, block: Storage) -> None:
        self.block = block

    def ended(self, streams: tuple[Stream, ...]) -> None:
        """Have the block wait for these, when the last part of it is gone."""
        for stream in streams:
            self.block.use_on(stream)


def ferries(storages: Sequence[Bytes], copied: Collection[int]) -> tuple[Ferry, ...]:
    """Return how the ``copied`` ones of some storages go. Pure."""
    found: list[Ferry] = []
    for k in sorted(copied, key=lambda k: storages[k].address):
        at, size = storages[k].address, storages[k].size
        last = found[-1] if found else None
        if last and max(last.size // len(last.storages), size) <= SMALL:
            gap = at - (last.start + last.size)
            if size and last.size and gap <= _GAP:
                whole = Size(at + size - last.start)
                found[-1] = Ferry(last.start, whole, (*last.storages, k))
                continue
        found.append(Ferry(at, size, (k,)))
    return tuple(found)


def landed(
    device: Device, ferry: Ferry, storages: Sequence[Bytes | Storage], stream: Stream
) -> list[Storage]:
    """Return new storages for what a ferry takes along; raises `OutOfMemory`."""
    # drain_dropped and not drain: that would let go of the storages which fast replays
    # keep. If memory is short, the allocation below has them let go.
    device.returns.drain_dropped()
    block = device.heap.allocate(ferry.size, stream)
    if len(ferry.storages) == 1:
        return [block]
    block.writer = stream
    moved = block.address - ferry.start
    return [
        Storage(
            Addr(storages[k].address + moved),
            storages[k].size,
            _Part(block),
            device.returns,
        )
        for k in ferry.storages
    ]
