"""Where physical memory comes from: the driver, or a budget before it."""

from __future__ import annotations

from typing import Protocol

from sapwood.driver.api import Driver, ExtentHandle
from sapwood.units import Size


class Source(Protocol):
    """Gives physical memory out, in extents of whole pages, and takes it back."""

    def create(self, size: Size) -> ExtentHandle:
        """Return new physical memory; raises `OutOfMemory` having done nothing."""
        ...

    def release(self, extent: ExtentHandle, size: Size) -> None:
        """Take back what `create` returned, when it is mapped nowhere any more."""


class DriverSource:
    """The driver itself."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def create(self, size: Size) -> ExtentHandle:
        """Return new physical memory; raises `OutOfMemory` having done nothing."""
        return self.driver.create(size)

    def release(self, extent: ExtentHandle, size: Size) -> None:
        """Take back what `create` returned, when it is mapped nowhere any more."""
        del size
        self.driver.release(extent)
