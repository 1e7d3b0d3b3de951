"""The allocator itself, on a device of addresses alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sapwood.allocator.caching.allocator import Allocator
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.caching.shortage.explain import Shortage
from sapwood.allocator.simulate.ground import Ground
from sapwood.driver.layers.recorded import Recorded
from sapwood.errors import OutOfMemory
from sapwood.units import Addr, Size

__all__ = ["Ours"]


class Ours:
    """`Allocator` as a simulation sees it; streams keep their numbers."""

    def __init__(self, settings: Settings, total: int) -> None:
        self.ground = Ground(Size(total))
        self._recorded = Recorded(self.ground)
        self.allocator = Allocator(self._recorded, settings)

    @property
    def reserved(self) -> int:
        """Bytes of physical memory, counted once."""
        return self.ground.held

    @property
    def calls(self) -> Mapping[str, int]:
        """How often the allocator made each call of the driver."""
        return self._recorded.counts()

    def allocate(self, size: int, stream: int) -> int:
        """Return an address for a stream."""
        try:
            return self.allocator.malloc(size, self.ground.adopt_stream(stream))
        except OutOfMemory as error:
            raise _of_a_rerun(error) from None

    def free(self, address: int) -> None:
        """Give an allocation back."""
        self.allocator.free(Addr(address))

    def close(self) -> None:
        """End the allocator and the device; raises `InternalError` for leaks."""
        self.allocator.close()
        self.ground.close()


def _of_a_rerun(error: OutOfMemory) -> OutOfMemory:
    """Return the error without what only a program that runs could be told to do."""
    missing = error.shortage
    if not isinstance(missing, Shortage):
        return error
    return OutOfMemory(
        error.call,
        asked=error.asked,
        free=error.free,
        largest=error.largest,
        holders=error.holders,
        shortage=replace(missing, rerun=True),
    )
