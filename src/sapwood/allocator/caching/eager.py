"""The caching allocator as the heap of eager arrays asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from sapwood.allocator.caching.allocator import Allocator
from sapwood.allocator.caching.settings import DEFAULT, Settings
from sapwood.allocator.caching.sizes import GRAIN
from sapwood.driver.api import Driver, Source
from sapwood.units import Addr, Size


class EagerAllocator(Allocator):
    """A caching allocator that says what it holds in plain values."""

    __slots__ = ()

    grain: Final = Size(GRAIN)

    def allocated_bytes(self) -> Size:
        """Return the bytes in blocks that somebody holds."""
        return Size(self.counters().total.allocated_bytes.current)

    def blocks(self) -> Iterator[tuple[Addr, Size, str]]:
        """Yield each block's address, size and state."""
        for segment in self.picture().segments:
            for block in segment.blocks:
                yield block.address, block.size, block.state


def opener(settings: Settings = DEFAULT) -> Callable[[Driver, Source], EagerAllocator]:
    """Return what opens an allocator with ``settings`` on a driver, within a budget."""
    return lambda driver, source: EagerAllocator(driver, settings, source=source)
