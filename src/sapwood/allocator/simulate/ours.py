"""The allocator itself, on a device of addresses alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any, NoReturn, TypeVar

from sapwood.allocator.caching.allocator import Allocator
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.caching.shortage.explain import Shortage
from sapwood.allocator.simulate.models.model import Model
from sapwood.driver.api import (
    Abilities,
    Access,
    ExtentHandle,
    MemoryInfo,
    StreamHandle,
)
from sapwood.driver.emulated.flow import Flow
from sapwood.driver.emulated.schedules import schedule_named
from sapwood.driver.facade import Facade
from sapwood.driver.layers.recorded import Recorded
from sapwood.driver.results import Refusal
from sapwood.errors import InternalError, MisuseError, OutOfMemory
from sapwood.units import Addr, Size, align_up, hex_address, size_text

R = TypeVar("R")

PAGE = Size(2 << 20)
_LOW = 0x7000_0000_0000
_ALIGNMENT = 1 << 30
"""Reservations lie apart, so that running over the end of one is noticed."""
_FIRST_MADE = 1 << 32
"""The first handle of streams and events, above the numbers that streams come with."""


class _Done(Flow):
    """Streams and events of work that is done at once; streams keep their numbers."""

    def __init__(self) -> None:
        super().__init__(schedule_named("earliest"), count(_FIRST_MADE))

    def adopt_stream(self, raw: int) -> StreamHandle:
        """Return the handle of a stream, which is its number outside, too."""
        stream = StreamHandle(raw)
        if stream not in self.streams.values:
            self.streams.put(stream, self.schedule.open())
        return stream

    def raw_stream(self, stream: StreamHandle) -> int:
        """Return a stream's number outside."""
        self.streams.find(stream)
        return stream

    def __getattr__(self, call: str) -> NoReturn:
        # Of the calls that are for bytes or work, this makes none.
        raise MisuseError(
            f"{call} needs bytes or work, and this device has addresses only. Use the "
            "emulated device"
        )


class Ground(Facade):
    """A device with ``total`` bytes of physical memory and nothing in them.

    ``held`` are the bytes of physical memory, counted once however often they are
    mapped, ``reserved`` those of addresses.
    """

    def __init__(self, total: Size, page: Size = PAGE) -> None:
        abilities = Abilities("addresses only", "ground", page, True)
        super().__init__(_Done(), abilities)
        self.total = total
        self.held = self.reserved = Size(0)
        self._handles = count(1)
        self._next = _LOW
        self._reservations: dict[int, int] = {}
        self._bases: list[int] = []
        self._sizes: dict[ExtentHandle, int] = {}
        self._uses: dict[ExtentHandle, int] = {}
        self._released: set[ExtentHandle] = set()
        self._mappings: dict[int, ExtentHandle] = {}
        self._starts: list[int] = []

    def around(self, name: str, call: Callable[..., R], args: tuple[Any, ...]) -> R:
        """Make a call for a stream or an event; that it is refused breaks a law."""
        try:
            return call(*args)
        except Refusal as refusal:
            _broken(f"a call of {name} can be made, but {refusal.explanation}")

    def memory_info(self) -> MemoryInfo:
        """Return physical memory, in bytes."""
        return MemoryInfo(Size(self.total - self.held), self.total)

    def mappings(self) -> list[tuple[Addr, Size, ExtentHandle]]:
        """Return what is mapped where, in the order of addresses."""
        return [
            (Addr(start), Size(self._sizes[extent]), extent)
            for start, extent in sorted(self._mappings.items())
        ]

    def close(self) -> None:
        """End the device; raises `InternalError` where memory was not given back."""
        if self._reservations or self._sizes:
            _broken(
                f"{len(self._reservations)} reservations and {size_text(self.held)} "
                "of memory are given back before the device is closed"
            )

    # Virtual memory.

    def reserve(self, size: Size, at: Addr | None = None) -> Addr:
        """Reserve addresses."""
        self._whole("reserve", size, at or 0)
        address = self._next if at is None else at
        index = bisect_left(self._bases, address + size) - 1
        base = self._bases[index] if index >= 0 else 0
        if base + self._reservations.get(base, 0) > address:
            _broken(f"addresses at {hex_address(address)} are reserved once")
        self._next = max(self._next, align_up(address + size + 1, _ALIGNMENT))
        self._reservations[address] = size
        insort(self._bases, address)
        self.reserved = Size(self.reserved + size)
        return Addr(address)

    def unreserve(self, address: Addr, size: Size) -> None:
        """Give a whole reservation back."""
        if self._reservations.get(address) != size:
            _broken(f"a reservation, as at {hex_address(address)}, is given back whole")
        if self._between(address, address + size):
            _broken(f"nothing is mapped in a reservation given back, as {address:#x}")
        del self._reservations[address]
        del self._bases[bisect_left(self._bases, address)]
        self.reserved = Size(self.reserved - size)

    def create(self, size: Size) -> ExtentHandle:
        """Create physical memory; raises `OutOfMemory`."""
        self._whole("create", size)
        if self.held + size > self.total:
            raise OutOfMemory("create", asked=size, free=self.total - self.held)
        extent = ExtentHandle(next(self._handles))
        self._sizes[extent] = size
        self._uses[extent] = 0
        self.held = Size(self.held + size)
        return extent

    def release(self, extent: ExtentHandle) -> None:
        """Give the handle back."""
        if extent not in self._sizes or extent in self._released:
            _broken(f"extent {extent} is released once, and was created before")
        self._released.add(extent)
        self._settle(extent)

    def map(self, address: Addr, extent: ExtentHandle) -> None:
        """Map a whole extent at reserved, unmapped addresses."""
        if extent not in self._sizes or extent in self._released:
            _broken(f"extent {extent} exists when it is mapped")
        size = self._sizes[extent]
        self._whole("map", size, address)
        index = bisect_right(self._bases, address) - 1
        base = self._bases[index] if index >= 0 else 0
        if address + size > base + self._reservations.get(base, 0):
            _broken(f"mapped addresses, as {hex_address(address)}, are reserved")
        if self._between(address, address + size):
            _broken(f"addresses, as {hex_address(address)}, are mapped once")
        self._mappings[address] = extent
        insort(self._starts, address)
        self._uses[extent] += 1

    def set_access(self, address: Addr, size: Size, access: Access) -> None:
        """Set access to a wholly mapped interval."""
        del access
        self._tiled(address, size)

    def unmap(self, address: Addr, size: Size) -> None:
        """Unmap whole mappings."""
        starts = self._tiled(address, size)
        index = bisect_left(self._starts, address)
        del self._starts[index : index + len(starts)]
        for start in starts:
            extent = self._mappings.pop(start)
            self._uses[extent] -= 1
            self._settle(extent)

    def _whole(self, call: str, size: int, address: int = 0) -> None:
        page = self.abilities.page
        if size <= 0 or size % page or address % page:
            _broken(
                f"{call} is asked for whole pages of {size_text(page)}, not for "
                f"{size:#_x} bytes at {hex_address(address)}"
            )

    def _between(self, lo: int, hi: int) -> bool:
        """Whether anything is mapped in an interval."""
        index = bisect_left(self._starts, hi) - 1
        if index < 0:
            return False
        start = self._starts[index]
        return start + self._sizes[self._mappings[start]] > lo

    def _tiled(self, address: int, size: int) -> list[int]:
        """Return where the mappings begin that together are exactly the interval."""
        starts, at = [], address
        while at < address + size and at in self._mappings:
            starts.append(at)
            at += self._sizes[self._mappings[at]]
        if at != address + size or size <= 0:
            _broken(
                f"calls for mapped memory, as for {size_text(size)} at "
                f"{hex_address(address)}, name whole mappings"
            )
        return starts

    def _settle(self, extent: ExtentHandle) -> None:
        """Let memory go with its handle and its last mapping."""
        if extent in self._released and not self._uses[extent]:
            self.held = Size(self.held - self._sizes.pop(extent))
            self._released.remove(extent)
            del self._uses[extent]


def _broken(law: str) -> NoReturn:
    raise InternalError(law, remedy="Look at the allocator that made the call")


class Ours(Model):
    """`Allocator` as a simulation sees it; streams keep their numbers."""

    def __init__(self, settings: Settings, total: int) -> None:
        super().__init__(settings, total)
        self.ground = Ground(Size(total))
        recorded = Recorded(self.ground)
        self.calls = recorded.ever
        self.allocator = Allocator(recorded, settings)

    def allocate(self, size: int, stream: int) -> int:
        """Return an address for a stream."""
        try:
            address = self.allocator.malloc(size, self.ground.adopt_stream(stream))
        except OutOfMemory as error:
            if not isinstance(error.shortage, Shortage):
                raise
            # Without what only a program that runs could be told to do.
            shortage = replace(error.shortage, rerun=True)
            raise OutOfMemory(
                error.call, asked=error.asked, free=error.free, shortage=shortage
            ) from None
        self.reserved = self.ground.held
        return address

    def free(self, address: int) -> None:
        """Give an allocation back."""
        self.allocator.free(Addr(address))
        self.reserved = self.ground.held

    def close(self) -> None:
        """End the allocator and the device; raises `InternalError` for leaks."""
        self.allocator.close()
        self.ground.close()
