"""CuPy: an allocator of this library for its arrays, stream by stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sapwood.allocator.lending import Lender, imported


def library() -> Any:
    """Return CuPy. Raises `MisuseError` where it cannot be imported."""
    return imported("cupy", "CuPy", "cupy-cuda13x")


def allocator(lenders: Callable[[int], Lender]) -> Callable[[int], Any]:
    """Return a function for ``cupy.cuda.set_allocator`` or ``using_allocator``.

    ``lenders`` returns the lender of a GPU by its number. An array's bytes are for
    work on the stream that was current when it was made, as with CuPy's own pool; they
    may be reused in that stream's order as soon as the array is gone.
    """
    cuda = library().cuda
    kind = type("SapwoodMemory", (_Memory, cuda.BaseMemory), {"__slots__": ()})
    device_now, stream_now = cuda.runtime.getDevice, cuda.get_current_stream
    pointer = cuda.MemoryPointer

    def allocate(size: int) -> Any:
        device = device_now()
        lender = lenders(device)
        memory = kind()
        memory.lender = lender
        memory.size, memory.device_id = size, device
        memory.ptr = lender.lend(size, stream_now().ptr)
        return pointer(memory, 0)

    return allocate


class _Memory:
    """Bytes that go back when the last array on them is gone.

    Their address is CuPy's own field: nothing here may be in front of it.
    """

    lender: Lender
    ptr: int

    def __del__(self) -> None:
        if self.ptr:
            self.lender.take_back(self.ptr)
