"""The few Linux calls that give real virtual memory; they raise OSError.

``mmap`` of the standard library cannot choose an address, so these go through
ctypes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

from sapwood.driver.api import Access
from sapwood.units import Addr, Size, align_down, hex_address

_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_NORESERVE, _FIXED, _FIXED_NOREPLACE = 0x4000, 0x10, 0x100000
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_NONE = 0
_ASYNC = 1
_PROTECTION = {
    Access.NONE: _NONE,
    Access.READ: mmap.PROT_READ,
    Access.READ_WRITE: mmap.PROT_READ | mmap.PROT_WRITE,
}
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_address, _size = ctypes.c_void_p, ctypes.c_size_t
_int, _offset = ctypes.c_int, ctypes.c_int64
_libc.mmap.restype = _address
_libc.mmap.argtypes = (_address, _size, _int, _int, _int, _offset)
_libc.munmap.argtypes = (_address, _size)
_libc.mprotect.argtypes = _libc.msync.argtypes = (_address, _size, _int)
_libc.fallocate.argtypes = (_int, _int, _offset, _offset)


def _checked(result: int | None, _function: object, _arguments: object) -> int | None:
    if result in {-1, _FAILED}:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


for _function in (_libc.mmap, _libc.munmap, _libc.mprotect, _libc.fallocate):
    _function.errcheck = _checked  # type: ignore[assignment]


def reserve(address: Addr, size: Size) -> None:
    """Take addresses, without memory behind them.

    Raises FileExistsError where something uses them.
    """
    flags = _ANONYMOUS | _NORESERVE | _FIXED_NOREPLACE
    got = Addr(_libc.mmap(address, size, _NONE, flags, -1, 0))
    if got != address:
        unmap(got, size)
        raise FileExistsError(f"{hex_address(address)} cannot be had")


def cover(address: Addr, size: Size) -> None:
    """Unmap what lies at reserved addresses and keep the addresses."""
    _libc.mmap(address, size, _NONE, _ANONYMOUS | _NORESERVE | _FIXED, -1, 0)


def map_file(address: Addr, size: Size, file: int, offset: int) -> None:
    """Map a part of a file at reserved addresses, without access."""
    _libc.mmap(address, size, _NONE, mmap.MAP_SHARED | _FIXED, file, offset)


def new_private(size: Size) -> Addr:
    """Return new private memory, anywhere."""
    return Addr(_libc.mmap(0, size, _PROTECTION[Access.READ_WRITE], _ANONYMOUS, -1, 0))


def protect(address: Addr, size: Size, access: Access) -> None:
    """Set what the processor may do with mapped memory."""
    _libc.mprotect(address, size, _PROTECTION[access])


def unmap(address: Addr, size: Size) -> None:
    """Give addresses back to the process."""
    _libc.munmap(address, size)


def is_mapped(address: Addr, size: Size) -> bool:
    """Return whether the process has something mapped at all these addresses."""
    start = align_down(address, Size(mmap.PAGESIZE))
    status: int = _libc.msync(start, address + size - start, _ASYNC)
    return status == 0


def new_file(name: str, size: Size) -> int:
    """Return the descriptor of a sparse file that lives in memory only."""
    file = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.ftruncate(file, size)
    except OSError:
        os.close(file)
        raise
    return file


def punch(file: int, offset: int, size: Size) -> None:
    """Free the memory behind a part of a file."""
    _libc.fallocate(file, _KEEP_SIZE | _PUNCH_HOLE, offset, size)


def max_map_count() -> int:
    """Return how many mappings Linux allows this process."""
    return int(Path("/proc/sys/vm/max_map_count").read_text())
