"""What a model of an allocator promises, and what PyTorch's two have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter

from sapwood.allocator.caching.settings import Settings
from sapwood.errors import OutOfMemory
from sapwood.units import align_up, size_text

MIB = 1 << 20
GRANULE = 2 * MIB
_LEAST = 512


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


def is_small(rounded: int) -> bool:
    """Return whether a rounded size belongs to the small blocks."""
    return rounded <= MIB


def round_up(size: int, settings: Settings) -> int:
    """Return the size of the block for a request, as PyTorch rounds it."""
    if size < _LEAST:
        return _LEAST
    divisions = settings.divisions(size)
    if divisions <= 1 or size <= _LEAST * divisions:
        return align_up(size, _LEAST)
    floor = 1 << (size.bit_length() - 1)
    return align_up(size, max(floor // divisions, 1))
