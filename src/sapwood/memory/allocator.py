"""What serves the memory of eager arrays, to the heap: any allocator of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from sapwood.driver.api import Driver, StreamHandle
from sapwood.units import Addr, Size


class HeapAllocator(Protocol):
    """An allocator of blocks whose sizes are rounded up to a multiple of ``grain``.

    ``base`` is the lowest address reserved for it, None where nothing is; `blocks` are
    each one's address, size and state.
    """

    @property
    def grain(self) -> Size: ...
    @property
    def base(self) -> Addr | None: ...
    def malloc(self, size: int, stream: StreamHandle) -> Addr: ...
    def free(self, address: Addr) -> None: ...
    def allocated_bytes(self) -> Size: ...
    def blocks(self) -> Iterable[tuple[Addr, Size, str]]: ...
    def trim(self) -> Size: ...
    def close(self) -> None: ...


Opener = Callable[[Driver], HeapAllocator]
"""Opens an allocator on a driver."""
