"""What a model of an allocator promises, and what all of them have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter

from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.caching.sizes import rounded
from sapwood.errors import OutOfMemory
from sapwood.units import Size, size_text

GRANULE = 2 << 20


class Model(ABC):
    """An allocator on a device of ``total`` bytes, as far as a simulation asks.

    ``reserved`` are the bytes of physical memory that it holds, ``calls`` how often
    it made each call of the driver.
    """

    def __init__(self, settings: Settings, total: int) -> None:
        self.settings, self.total = settings, total
        self.reserved = 0
        self.calls = Counter[str]()

    @abstractmethod
    def allocate(self, size: int, stream: int) -> int:
        """Return the address of ``size`` bytes for a stream; raises `OutOfMemory`."""

    @abstractmethod
    def free(self, address: int) -> None:
        """Give an allocation back, in the order of its own stream."""

    def block_size(self, size: int) -> Size:
        """Return the size of the block for a request, as PyTorch rounds it."""
        return rounded(size, self.settings.divisions(size))

    @property
    def left(self) -> int:
        """The bytes that the device still has."""
        return self.total - self.reserved

    def take(self, size: int) -> None:
        """Hold ``size`` bytes more, where there are as many."""
        if size > self.left:
            why = (
                f"asked for {size_text(size)} of a device of {size_text(self.total)} "
                f"with {size_text(self.left)} left. Simulate a larger one"
            )
            raise OutOfMemory("allocate", asked=size, free=self.left, shortage=why)
        self.reserved += size

    def give(self, size: int) -> None:
        """Hold ``size`` bytes less."""
        self.reserved -= size
