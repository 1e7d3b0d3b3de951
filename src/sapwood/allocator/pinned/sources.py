"""Where pinned memory comes from: the driver's own, or ordinary pages registered."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sapwood.driver.api import Driver
from sapwood.errors import OutOfMemory
from sapwood.units import Addr, Size, align_up

_POPULATE_WRITE: Final = 23
_LEAST: Final = 4 << 20  # below it a thread costs more than it saves

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def touch(address: Addr, size: Size, threads: int) -> None:
    """Make the system back fresh, page-aligned memory; what is in it stays zero.

    Raises `OutOfMemory` where it has none.
    """
    parts = shares(address, size, threads)
    if len(parts) == 1:
        _populate(*parts[0])
        return
    with ThreadPoolExecutor(len(parts), "sapwood-touch") as pool:
        for done in [pool.submit(_populate, *part) for part in parts]:
            done.result()


def shares(address: Addr, size: Size, threads: int) -> list[tuple[Addr, Size]]:
    """Return the interval in at most ``threads`` parts that begin at pages."""
    share = align_up(max(-(-size // threads), _LEAST), mmap.PAGESIZE)
    starts = range(0, size, share)
    return [(Addr(address + at), Size(min(share, size - at))) for at in starts]


def _populate(address: Addr, size: Size) -> None:
    if _libc.madvise(address, size, _POPULATE_WRITE) == 0:
        return
    number = ctypes.get_errno()
    if number == errno.EINVAL:  # before Linux 5.14
        ctypes.memset(address, 0, size)
    else:
        raise OutOfMemory("touch", asked=size, free=0) from OSError(
            number, os.strerror(number)
        )


class Source:
    """What gives pinned memory: the driver allocates it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def take(self, size: Size) -> Addr:
        """Return new memory that the device reaches; raises `DriverError`."""
        return self._driver.allocate_host(size)

    def give(self, address: Addr) -> None:
        """Give memory back; done even when it raises `DriverError`."""
        self._driver.free_host(address)


class Registered(Source):
    """Anonymous memory, touched by several threads at once, and then registered.

    The driver pins pages one by one, under a lock of its own; pages that are there
    already it pins several times as fast.
    """

    def __init__(self, driver: Driver, threads: int) -> None:
        super().__init__(driver)
        self._threads = threads
        self._maps: dict[Addr, mmap.mmap] = {}

    def take(self, size: Size) -> Addr:
        """Return new memory of the process's; raises `DriverError`."""
        try:
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise OutOfMemory("register_host", asked=size, free=0) from error
        # A fork would leave the device the child's pages, or this process new ones.
        pages.madvise(mmap.MADV_DONTFORK)
        address = Addr(ctypes.addressof(ctypes.c_char.from_buffer(pages)))
        touch(address, size, self._threads)
        self._driver.register_host(address, size)
        self._maps[address] = pages
        return address

    def give(self, address: Addr) -> None:
        """Give memory back; done even when it raises `DriverError`."""
        pages = self._maps.pop(address)
        try:
            self._driver.unregister_host(address)
        finally:
            pages.close()
