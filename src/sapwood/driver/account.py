"""What a device has given out of its addresses, and which host memory it reaches.

Devices of every kind keep it, and refuse by it, in the same words.
"""

from __future__ import annotations

from bisect import bisect_right, insort

from sapwood.driver.results import Result, invalid_value
from sapwood.units import Addr, Size, hex_address, size_text


class Account:
    """Reservations, host blocks and registered memory of one device, by address."""

    def __init__(self) -> None:
        self.reservations: dict[Addr, Size] = {}
        self.host: dict[Addr, Size] = {}
        self.registered: dict[Addr, Size] = {}
        self._reserved: list[Addr] = []

    def reserved(self, address: Addr, size: Size) -> None:
        """Note a reservation."""
        self.reservations[address] = size
        insort(self._reserved, address)

    def unreserved(self, address: Addr, size: Size, mapped: Addr | None) -> None:
        """Forget a reservation; refuse a part of one, or one with memory ``mapped``."""
        if self.reservations.get(address) != size:
            raise invalid_value(
                f"{size_text(size)} at {hex_address(address)} are not one whole "
                "reservation: give back what reserve returned, with its size"
            )
        if mapped is not None:
            raise invalid_value(
                f"memory is still mapped at {hex_address(mapped)}: unmap it before its "
                "addresses are given back"
            )
        del self.reservations[address]
        self._reserved.remove(address)

    def check_reserved(self, address: Addr, size: Size) -> None:
        """Refuse addresses that do not lie in one reservation."""
        index = bisect_right(self._reserved, address) - 1
        start = self._reserved[index] if index >= 0 else Addr(0)
        if address + size > start + self.reservations.get(start, 0):
            raise invalid_value(
                f"{size_text(size)} at {hex_address(address)} do not lie in one "
                "reservation: reserve the addresses first"
            )

    def check_host(self, size: Size) -> None:
        """Refuse a host block of no bytes."""
        if size <= 0:
            raise invalid_value(f"cannot allocate {size} bytes: ask for at least 1")

    def freed_host(self, address: Addr) -> Size:
        """Forget a host block, and return its size; refuse what is none."""
        if address not in self.host:
            raise invalid_value(
                f"no host block begins at {hex_address(address)}: free once what "
                "allocate_host returned"
            )
        return self.host.pop(address)

    def unregistered(self, address: Addr) -> Size:
        """Forget registered memory, and return its size; refuse what is none."""
        if address not in self.registered:
            raise Result.HOST_MEMORY_NOT_REGISTERED.refusal(
                f"no registered memory begins at {hex_address(address)}: unregister "
                "once what register_host was given"
            )
        return self.registered.pop(address)
