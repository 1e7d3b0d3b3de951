"""PyTorch: memory of this library in a ``torch.cuda.MemPool``.

PyTorch asks for segments under its allocator's lock, where a call into Python could
wait for ever. So a pool's memory is taken beforehand, and served by C.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Self

from sapwood.allocator.lending import DEFAULT, Lender, imported
from sapwood.errors import MisuseError
from sapwood.memory.native import PAGE, SegmentCounters, Segments, open_segments
from sapwood.units import Addr, Size, align_up, size_text


def library() -> Any:
    """Return PyTorch. Raises `MisuseError` where it is not there, or without CUDA."""
    torch = imported("torch", "PyTorch", "torch")
    if torch.version.cuda is None:
        raise MisuseError(
            f"torch {torch.__version__} is built without CUDA: install one with it"
        )
    return torch


def open_pool(
    lender: Lender, size: int, *, no_split: bool = False, use_on_oom: bool = False
) -> Pool:
    """Return ``size`` bytes, in whole pages, as a pool of segments for PyTorch.

    ``no_split`` and ``use_on_oom`` are ``torch.cuda.MemPool``'s own. Raises
    `OutOfMemory`, and `MisuseError` where there is no PyTorch with CUDA or its
    functions cannot be compiled.
    """
    cuda = library().cuda
    whole = Size(align_up(size, PAGE))
    options = {"no_split": no_split, "use_on_oom": use_on_oom}
    with ExitStack() as undo:
        address = lender.lend(whole + PAGE, DEFAULT)
        undo.callback(lender.take_back, address)
        base = Addr(align_up(address, PAGE))
        segments = open_segments(base, whole, device=lender.device, page=PAGE)
        undo.callback(segments.close)
        functions = cuda.memory.CUDAPluggableAllocator(*segments.symbols)
        wanted = {name: True for name in options if options[name]}
        # A pool is of the device that is current where it is made, and of no other.
        with cuda.device(lender.device):
            mempool = cuda.MemPool(functions.allocator(), **wanted)
        undo.pop_all()
    return Pool(lender, address, segments, mempool)


class Pool:
    """A ``torch.cuda.MemPool`` on memory that this library lends.

    Use it as ``with torch.cuda.use_mem_pool(pool.mempool):``. PyTorch raises its own
    out-of-memory error where the pool is full; `counters` tells what was wanted then.
    A context manager: leaving it closes the pool.
    """

    def __init__(
        self, lender: Lender, address: Addr, segments: Segments, mempool: Any
    ) -> None:
        self._lender, self._address = lender, address
        self.segments, self.mempool = segments, mempool

    def counters(self) -> SegmentCounters:
        """Return what PyTorch was served so far, and holds now."""
        return self.segments.counters()

    def settle(self) -> None:
        """Wait for all work; then any stream may have what PyTorch gave back."""
        self._lender.driver.synchronize()
        self.segments.settle()

    def close(self) -> None:
        """Give the memory back; closing again does nothing.

        Raises `MisuseError` while tensors of the pool are alive, or captured graphs.
        """
        if self.segments.closed:
            return
        if self.mempool is not None and self.mempool.use_count() > 1:
            raise MisuseError(
                f"{self!r} is in use: leave use_mem_pool, and delete the graphs that "
                "were captured with it"
            )
        self.mempool = None  # what it caches goes with it
        if self.segments.counters().held:
            library().cuda.empty_cache()
        self._lender.driver.synchronize()
        self.segments.close()
        self._lender.take_back(self._address)
        self._lender.drain()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Pool of {size_text(self.segments.size)} for torch>"
