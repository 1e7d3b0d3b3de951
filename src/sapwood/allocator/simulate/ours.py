"""The allocator itself, on a device of addresses alone."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any, NoReturn, TypeVar

from sapwood.allocator.caching.allocator import Allocator
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.caching.shortage import Shortage
from sapwood.allocator.simulate.models.model import Model
from sapwood.driver.api import Abilities, Access, MemoryCalls, StreamHandle
from sapwood.driver.emulated.flow import Flow
from sapwood.driver.emulated.memory import Memory
from sapwood.driver.emulated.physical import Extent, Physical
from sapwood.driver.emulated.schedules import schedule_named
from sapwood.driver.emulated.window import Window
from sapwood.driver.facade import Facade
from sapwood.driver.layers import Recorded
from sapwood.driver.results import Refusal
from sapwood.errors import InternalError, MisuseError, OutOfMemory
from sapwood.units import Addr, Size, align_up, size_text

R = TypeVar("R")

PAGE = Size(2 << 20)
_ALIGNMENT = 1 << 30
"""Reservations lie apart, so that running over the end of one is noticed."""
_FIRST_MADE = 1 << 32
"""The first handle of streams and events, above the numbers that streams come with."""


class _Addresses(Window):
    """Addresses that end nowhere, with nothing behind them."""

    def most(self) -> float:
        """Return that there may be any number of reservations and mappings."""
        return math.inf

    def take(self, size: Size, page: Size) -> Addr:
        """Reserve addresses, apart from all others."""
        del page
        address = self._last
        self._taken.append((address, address + size))
        self._last = align_up(address + size + 1, _ALIGNMENT)
        return Addr(address)

    def give(self, address: Addr, size: Size) -> None:
        """Give a reservation back."""
        del self._taken[bisect_left(self._taken, (address, address + size))]

    def protect(self, address: Addr, size: Size, access: Access) -> None:
        """Do nothing: no processor comes here."""

    def cover(self, address: Addr, size: Size) -> None:
        """Do nothing: nothing lies there."""


class _Amounts(Physical):
    """Memory of which there are numbers only."""

    def open(self) -> int:
        """Return that there is no file."""
        return -1

    def poison(self, extent: Extent) -> None:
        """Do nothing: there are no bytes."""

    def punch(self, extent: Extent) -> None:
        """Do nothing: there are no bytes."""

    def map(self, address: Addr, extent: Extent) -> None:
        """Do nothing: there are no bytes."""


class _Done(Flow):
    """Streams and events of work that is done at once; streams keep their numbers."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(schedule_named("earliest"), count(_FIRST_MADE))
        self._memory = memory

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

    def __getattr__(self, call: str) -> Any:
        if call in vars(MemoryCalls) and not call.endswith("_host"):
            return getattr(self._memory, call)
        raise MisuseError(
            f"{call} needs bytes or work, and this device has addresses only. Use the "
            "emulated device"
        )


class Ground(Facade):
    """A device with ``total`` bytes of physical memory and nothing in them.

    It keeps the rules of the emulated one, of which it is made.
    """

    def __init__(self, total: Size, page: Size = PAGE) -> None:
        self.memory = Memory(_Amounts(total), _Addresses(), page, count(1))
        abilities = Abilities("addresses only", "ground", page, True)
        super().__init__(_Done(self.memory), abilities)

    def around(self, name: str, call: Callable[..., R], args: tuple[Any, ...]) -> R:
        """Make a call; a refusal is a broken law."""
        try:
            return call(*args)
        except Refusal as refusal:
            _broken(f"a call of {name} can be made, but {refusal.explanation}")

    @property
    def held(self) -> Size:
        """The bytes of physical memory, counted once however often they are mapped."""
        return Size(self.memory.physical.used)

    def close(self) -> None:
        """End the device; raises `InternalError` where memory was not given back."""
        reservations = len(self.memory.reservations)
        if reservations or self.held:
            _broken(
                f"{reservations} reservations and {size_text(self.held)} of memory are "
                "given back before the device is closed"
            )


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
