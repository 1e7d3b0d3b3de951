"""Device memory as CuPy has it, over storages; and storages over CuPy's own memory.

CuPy's arrays share a memory object with their views. Over a storage of this library
that object is a `Memory`; any other belongs to whoever made it.
"""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakValueDictionary

import cupy

from sapwood.driver.streams import Queue, Stream
from sapwood.memory.framework import Allocate
from sapwood.memory.storage import STREAM_EPOCH, Storage, Unowned
from sapwood.units import Addr, Size


class Place(Protocol):
    """A GPU, and the stream that CuPy uses on it just now."""

    @property
    def ordinal(self) -> int: ...
    def here(self) -> Stream | None: ...


class Memory(cupy.cuda.memory.BaseMemory):  # type: ignore[misc]
    """A storage's bytes; the storage lives as long as any array over them."""

    def __init__(self, storage: Storage, place: Place) -> None:
        self.ptr, self.size = storage.address, storage.size
        self.device_id = place.ordinal
        self.storage, self.place = storage, place

    def __del__(self) -> None:
        # CuPy launches unseen: what used these bytes last was most likely given to
        # the stream that is current where they are dropped.
        stream, storage = self.place.here(), self.storage
        if stream is not None and stream is not storage.writer:
            storage.readers = (*storage.readers, stream)
            STREAM_EPOCH.advance()


def pointer(storage: Storage, address: Addr, place: Place) -> Any:
    """Return CuPy's pointer to an address in a storage."""
    kept = storage.token
    memory = kept.memory if isinstance(kept, _Kept) else Memory(storage, place)
    return cupy.cuda.MemoryPointer(memory, address - storage.address)


class _Kept(Unowned):
    """The token of bytes that somebody else gives back, once nobody has their memory.

    CuPy's pool reuses them in the order of the stream that they were allocated for.
    """

    def __init__(self, memory: Any) -> None:
        self.memory = memory


class Foreign:
    """The storages of memory that this library did not allocate.

    There is one for the same bytes for as long as anybody has it.
    """

    def __init__(self) -> None:
        self._known: WeakValueDictionary[tuple[int, int], Storage] = (
            WeakValueDictionary()
        )

    def storage(self, memory: Any, end: Addr, dropped: Queue) -> Storage:
        """Return the storage that stands for CuPy's memory object.

        An array over it reaches to ``end``: of memory that came by DLPack, or that a
        program has named by its address, CuPy's size may be too small.
        """
        key = memory.ptr, memory.size
        found = self._known.get(key)
        if found is None:
            found = Storage(Addr(key[0]), Size(key[1]), _Kept(memory), dropped)
            self._known[key] = found
        found.size = Size(max(found.size, end - found.address))
        return found


def allocator(allocate: Allocate, place: Place) -> Any:
    """Return a CuPy allocator whose memory comes from ``allocate``."""

    def give(size: int) -> Any:
        storage = allocate(Size(size))
        return pointer(storage, storage.address, place)

    return give
