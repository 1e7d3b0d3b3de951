"""The GPU's memory: reservations, extents, mappings, and pinned host blocks.

CUDA accepts some mappings and unmappings that it should not, and then fails far
away. So an account is kept of what is reserved and mapped where.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np

from sapwood.driver.account import Account
from sapwood.driver.api import Access, ExtentHandle, MemoryInfo
from sapwood.driver.check import check_pages, tiles
from sapwood.driver.cuda.bindings import Answer, Library
from sapwood.driver.handles import Table
from sapwood.driver.results import Result
from sapwood.errors import OutOfMemory
from sapwood.units import Addr, Size

_HIGH: Final = Addr(0x5B3A_0000_0000)
"""Where free addresses are looked for first.

The driver on its own begins at 12 GiB. Two sizes of 32 bits that a kernel is passed
side by side, such as (3, 4), read as one word there would be an address of ours, and
the call would not be recorded. Above this one the second size is 23,354 or more.
"""


class Memory(Account):
    """Virtual and physical memory of one GPU, and host memory that it can reach."""

    def __init__(self, library: Library, ordinal: int) -> None:
        super().__init__()
        cu = library.cu
        self._library = library
        self._lock = threading.Lock()
        self._kind = kind = cu.CUmemAllocationProp()
        kind.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        kind.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        kind.location.id = ordinal
        least = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.page = Size(library(cu.cuMemGetAllocationGranularity, kind, least))
        flags = cu.CUmemAccess_flags
        self._access = {
            Access.NONE: flags.CU_MEM_ACCESS_FLAGS_PROT_NONE,
            Access.READ: flags.CU_MEM_ACCESS_FLAGS_PROT_READ,
            Access.READ_WRITE: flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        }
        self.extents = Table[ExtentHandle, Size]("extent")
        self.mappings: dict[Addr, Size] = {}

    def memory_info(self) -> MemoryInfo:
        """Return what the whole GPU has, whoever uses it."""
        free, total = self._library(self._library.cu.cuMemGetInfo)
        return MemoryInfo(Size(free), Size(total))

    def reserve(self, size: Size) -> Addr:
        check_pages(self.page, size=size)
        reserve = self._library.cu.cuMemAddressReserve
        with self._lock:
            address = Addr(int(self._library(reserve, size, 0, _HIGH, 0)))
            self.reserved(address, size)
        return address

    def unreserve(self, address: Addr, size: Size) -> None:
        with self._lock:
            inside = (at for at in self.mappings if address <= at < address + size)
            self.unreserved(address, size, next(inside, None))
            self._library(self._library.cu.cuMemAddressFree, address, size)

    def create(self, size: Size) -> ExtentHandle:
        check_pages(self.page, size=size)
        try:
            extent = self._library(self._library.cu.cuMemCreate, size, self._kind, 0)
        except Answer as answer:
            if answer.result is not Result.OUT_OF_MEMORY:
                raise
            free = self.memory_info().free
            raise OutOfMemory("create", asked=size, free=free) from None
        return self.extents.put(ExtentHandle(int(extent)), size)

    def release(self, extent: ExtentHandle) -> None:
        self.extents.take(extent)
        self._library(self._library.cu.cuMemRelease, extent)

    def map(self, address: Addr, extent: ExtentHandle) -> None:
        check_pages(self.page, address=address)
        size = self.extents.find(extent)
        with self._lock:
            self.check_reserved(address, size)
            self._library(self._library.cu.cuMemMap, address, size, 0, extent, 0)
            self.mappings[address] = size

    def set_access(self, address: Addr, size: Size, access: Access) -> None:
        cu = self._library.cu
        with self._lock:
            self._tiled(address, size)
            wanted = cu.CUmemAccessDesc()
            wanted.location = self._kind.location
            wanted.flags = self._access[access]
            self._library(cu.cuMemSetAccess, address, size, [wanted], 1)

    def unmap(self, address: Addr, size: Size) -> None:
        with self._lock:
            for each in self._tiled(address, size):
                del self.mappings[each]
            self._library(self._library.cu.cuMemUnmap, address, size)

    def allocate_host(self, size: Size) -> Addr:
        self.check_host(size)
        cu = self._library.cu
        flags = cu.CU_MEMHOSTALLOC_PORTABLE | cu.CU_MEMHOSTALLOC_DEVICEMAP
        address = Addr(int(self._library(cu.cuMemHostAlloc, size, flags)))
        self.host[address] = size
        return address

    def free_host(self, address: Addr) -> None:
        self.freed_host(address)
        self._library(self._library.cu.cuMemFreeHost, address)

    def register_host(self, address: Addr, size: Size) -> None:
        cu = self._library.cu
        flags = cu.CU_MEMHOSTREGISTER_PORTABLE | cu.CU_MEMHOSTREGISTER_DEVICEMAP
        self._library(cu.cuMemHostRegister, address, size, flags)
        self.registered[address] = size

    def unregister_host(self, address: Addr) -> None:
        self.unregistered(address)
        self._library(self._library.cu.cuMemHostUnregister, address)

    def upload(self, dst: Addr, data: memoryview, stream: Any) -> None:
        """Copy bytes in; they are read before this returns."""
        library, cu = self._library, self._library.cu
        if not data.c_contiguous:
            data = memoryview(data.tobytes())
        source = np.frombuffer(data, np.uint8).ctypes.data
        library(cu.cuMemcpyHtoDAsync, dst, source, data.nbytes, stream)
        kind = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        unknown, _ = cu.cuPointerGetAttribute(kind, source)
        if not unknown:  # memory that the GPU reads in place, and later
            library(cu.cuStreamSynchronize, stream)

    def download(self, src: Addr, size: Size, stream: Any) -> bytearray:
        """Copy bytes out, and wait for them."""
        library, cu = self._library, self._library.cu
        data = bytearray(size)
        if size:
            library(cu.cuMemcpyDtoHAsync, data, src, size, stream)
        library(cu.cuStreamSynchronize, stream)
        return data

    def _tiled(self, address: Addr, size: Size) -> list[Addr]:
        mappings = self.mappings
        return tiles(mappings, lambda at: at + mappings[at], address, size)
