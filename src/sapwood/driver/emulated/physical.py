"""Physical memory: a sparse file in memory, of which extents are parts.

Offsets are never used twice, and one file serves a device, so neither fragments nor
file descriptors run out. Fresh extents are poisoned.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

from sapwood.driver.emulated import linux
from sapwood.driver.results import Result
from sapwood.errors import OutOfMemory
from sapwood.units import Addr, Size

POISON = 0xFF
"""The byte that fresh memory holds: floats read as NaN, integers as -1."""

_FILE_SIZE = Size(1 << 60)
_CHUNK = 1 << 20
_POISONED = bytes([POISON]) * _CHUNK


@dataclass(slots=True)
class Extent:
    """A part of the file, and what still needs it."""

    offset: int
    size: Size
    held: bool = True
    mappings: int = 0


class Physical:
    """``total`` bytes of memory; an extent counts until nothing needs it.

    ``file`` is the descriptor of the file behind all extents.
    """

    def __init__(self, total: Size) -> None:
        self.total = total
        self.used = self._end = 0
        self.file = self.open()

    def open(self) -> int:
        """Return a new file for all extents."""
        try:
            return linux.new_file("sapwood-emulated", _FILE_SIZE)
        except OSError as error:
            files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            raise Result.OUT_OF_MEMORY.refusal(
                f"no file for the device's memory: {error.strerror}; RLIMIT_NOFILE is "
                f"{files}: close devices or files, or raise it with `ulimit -n`"
            ) from error

    def create(self, size: Size) -> Extent:
        """Return a poisoned extent. Raises `OutOfMemory`."""
        free = self.total - self.used
        if size > free:
            raise OutOfMemory("create", asked=size, free=free)
        extent = Extent(self._end, size)
        try:
            self.poison(extent)
        except OSError as error:
            self.punch(extent)
            raise OutOfMemory("create", asked=size, free=0) from error
        self._end += size
        self.used += size
        return extent

    def poison(self, extent: Extent) -> None:
        """Write what fresh memory holds."""
        for start in range(0, extent.size, _CHUNK):
            part = _POISONED[: min(_CHUNK, extent.size - start)]
            os.pwrite(self.file, part, extent.offset + start)

    def punch(self, extent: Extent) -> None:
        """Free the memory behind an extent."""
        linux.punch(self.file, extent.offset, extent.size)

    def map(self, address: Addr, extent: Extent) -> None:
        """Map an extent at reserved addresses, without access."""
        linux.map_file(address, extent.size, self.file, extent.offset)

    def settle(self, extent: Extent) -> None:
        """Free an extent that nothing needs any more."""
        if not extent.held and not extent.mappings:
            self.punch(extent)
            self.used -= extent.size

    def close(self) -> None:
        """Give all memory back to the system."""
        os.close(self.file)
