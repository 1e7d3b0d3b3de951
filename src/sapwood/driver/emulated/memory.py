"""The emulated device's memory: reservations, extents, mappings, host blocks.

Every access of a kernel or copy is checked against the mappings, so that a wrong
address is an error and never a segmentation fault. ``version`` changes whenever an
answer of `Memory.check` may.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from sapwood.driver.account import Account
from sapwood.driver.api import Access, ExtentHandle, MemoryInfo
from sapwood.driver.check import check_pages, tiles
from sapwood.driver.emulated import linux, window
from sapwood.driver.emulated.physical import POISON, Extent, Physical
from sapwood.driver.handles import Counted
from sapwood.driver.results import Refusal, Result, invalid_value
from sapwood.units import Addr, Size, hex_address, interval_text, size_text


@dataclass(slots=True)
class _Mapping:
    lo: Addr
    hi: Addr
    extent: Extent
    access: Access = Access.NONE


class Memory(Account):
    """Virtual and physical memory of one device, and host memory it can reach."""

    def __init__(
        self,
        physical: Physical,
        addresses: window.Window,
        page: Size,
        handles: Iterator[int],
    ) -> None:
        super().__init__()
        self.page = page
        self.version = 0
        self.physical, self.addresses = physical, addresses
        self.extents = Counted[ExtentHandle, Extent]("extent", handles)
        self.mappings: dict[Addr, _Mapping] = {}
        self._starts: list[Addr] = []
        self._reached: list[tuple[int, int]] = []  # host memory, from where to where
        self._most = addresses.most()

    def memory_info(self) -> MemoryInfo:
        physical = self.physical
        return MemoryInfo(Size(physical.total - physical.used), physical.total)

    def reserve(self, size: Size) -> Addr:
        check_pages(self.page, size=size)
        self._check_room()
        address = self.addresses.take(size, self.page)
        self.reserved(address, size)
        return address

    def unreserve(self, address: Addr, size: Size) -> None:
        mapping = self._meeting(address, address + size)
        self.unreserved(address, size, None if mapping is None else mapping.lo)
        self.addresses.give(address, size)

    def create(self, size: Size) -> ExtentHandle:
        check_pages(self.page, size=size)
        return self.extents.add(self.physical.create(size))

    def release(self, extent: ExtentHandle) -> None:
        found = self.extents.take(extent)
        found.held = False
        self.physical.settle(found)

    def map(self, address: Addr, extent: ExtentHandle) -> None:
        check_pages(self.page, address=address)
        found = self.extents.find(extent)
        end = Addr(address + found.size)
        self.check_reserved(address, found.size)
        mapping = self._meeting(address, end)
        if mapping is not None:
            raise invalid_value(
                f"memory is mapped at {hex_address(mapping.lo)}: unmap it before "
                "mapping there again"
            )
        self._check_room()
        self.physical.map(address, found)
        self.mappings[address] = _Mapping(address, end, found)
        insort(self._starts, address)
        found.mappings += 1
        self.version += 1

    def set_access(self, address: Addr, size: Size, access: Access) -> None:
        mappings = self._tiled(address, size)
        self.addresses.protect(address, size, access)
        for mapping in mappings:
            mapping.access = access
        self.version += 1

    def unmap(self, address: Addr, size: Size) -> None:
        mappings = self._tiled(address, size)
        self.addresses.cover(address, size)
        index = bisect_left(self._starts, address)
        del self._starts[index : index + len(mappings)]
        self.version += 1
        for mapping in mappings:
            del self.mappings[mapping.lo]
            mapping.extent.mappings -= 1
            self.physical.settle(mapping.extent)

    def allocate_host(self, size: Size) -> Addr:
        self.check_host(size)
        address = linux.new_private(size)
        ctypes.memset(address, POISON, size)
        self.host[address] = size
        self._reach(address, size)
        return address

    def free_host(self, address: Addr) -> None:
        size = self.freed_host(address)
        self._lose(address, size)
        linux.unmap(address, size)

    def register_host(self, address: Addr, size: Size) -> None:
        if size <= 0 or not linux.is_mapped(address, size):
            raise invalid_value(
                f"the process has no {size_text(size)} at {hex_address(address)}: "
                "register memory that it has mapped"
            )
        if self._reached_before(address + size) > address:
            raise Result.HOST_MEMORY_ALREADY_REGISTERED.refusal(
                f"the device reaches some of the {size_text(size)} at "
                f"{hex_address(address)} already: register each byte once"
            )
        self.registered[address] = size
        self._reach(address, size)

    def unregister_host(self, address: Addr) -> None:
        self._lose(address, self.unregistered(address))

    def check(self, lo: int, hi: int, writes: bool) -> None:
        """Refuse an access to ``[lo, hi)`` that the mappings do not allow."""
        if lo >= hi:
            return
        if not window.LOW <= lo < window.HIGH:
            if self._reached_before(lo + 1) < hi:
                why = "it is neither device memory nor in one block of allocate_host or"
                raise _illegal(lo, hi, f"{why} register_host")
            return
        at = lo
        while at < hi:
            mapping = self._meeting(at, at + 1)
            if mapping is None:
                raise _illegal(lo, hi, f"nothing is mapped at {hex_address(at)}")
            if mapping.access is Access.NONE or (
                writes and mapping.access is Access.READ
            ):
                how = "written" if writes else "read"
                raise _illegal(lo, hi, f"{hex_address(at)} may not be {how}")
            at = mapping.hi

    def close(self) -> None:
        """Give everything back to the system, whatever still uses it."""
        for reserved, size in self.reservations.items():
            self.addresses.give(reserved, size)
        for address, size in self.host.items():
            linux.unmap(address, size)
        self.physical.close()

    def _reached_before(self, end: int) -> int:
        """Return where the last host block ends that begins before ``end``, or 0."""
        index = bisect_left(self._reached, (end,)) - 1
        return self._reached[index][1] if index >= 0 else 0

    def _reach(self, address: Addr, size: Size) -> None:
        insort(self._reached, (address, address + size))
        self.version += 1

    def _lose(self, address: Addr, size: Size) -> None:
        self._reached.remove((address, address + size))
        self.version += 1

    def _meeting(self, lo: int, hi: int) -> _Mapping | None:
        """Return the last mapping that shares bytes with an interval, if any does."""
        index = bisect_left(self._starts, hi) - 1
        found = self.mappings[self._starts[index]] if index >= 0 else None
        return found if found is not None and found.hi > lo else None

    def _tiled(self, address: Addr, size: Size) -> list[_Mapping]:
        mappings = self.mappings
        found = tiles(mappings, lambda at: mappings[at].hi, address, size)
        return [mappings[at] for at in found]

    def _check_room(self) -> None:
        # One mapping costs Linux two in the worst case; unmapping never costs more,
        # so what was allowed here can always be given back.
        if len(self.mappings) + len(self.reservations) >= self._most:
            raise Result.OUT_OF_MEMORY.refusal(
                f"more than {self._most} mappings: vm.max_map_count allows no more; "
                "map larger extents, or raise it with sysctl"
            )


def _illegal(lo: int, hi: int, why: str) -> Refusal:
    return Result.ILLEGAL_ADDRESS.refusal(
        f"work touches {interval_text(lo, hi)}, but {why}: map the "
        "memory, with access, for as long as work uses it"
    )
