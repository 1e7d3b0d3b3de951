"""Bringing pages into memory before somebody waits for them, by several threads."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sapwood.errors import OutOfMemory
from sapwood.units import Addr, Size, align_up

__all__ = ["shares", "touch"]

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
    return [
        (Addr(address + start), Size(min(share, size - start)))
        for start in range(0, size, share)
    ]


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
