"""Numba: an allocator of this library as its external memory manager.

Numba does not say which stream an array is for, nor on which it was used. So what it
gives back is reused only after all work of the device: many arrays wait for that
together, when there are enough of them or memory is short.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from sapwood.allocator.lending import DEFAULT, Lender, imported
from sapwood.errors import MisuseError, OutOfMemory
from sapwood.units import Addr, Size

_MANY: Final = 128
_MUCH: Final = Size(1 << 30)


def library() -> Any:
    """Return ``numba.cuda``. Raises `MisuseError` where it cannot be imported."""
    return imported("numba.cuda", "numba.cuda", "numba-cuda")


def plugin(lenders: Callable[[int], Lender]) -> Any:
    """Return a class for ``numba.cuda.set_memory_manager``.

    ``lenders`` returns the lender of a GPU by its number. Call it before Numba first
    uses a GPU.
    """
    cuda = library()
    bases = (_Plugin, cuda.HostOnlyCUDAMemoryManager)
    called = {"get_ipc_handle": _Plugin.share, "get_memory_info": _Plugin.memory_info}
    return type("SapwoodPlugin", bases, {"cuda": cuda, "lenders": lenders, **called})


class _Plugin:
    """What Numba asks of a plugin; mixed with the class that sees to host memory."""

    cuda: Any
    lenders: Callable[[int], Lender]
    context: Any
    interface_version = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ended: deque[tuple[Addr, Size]] = deque()
        self._lock = threading.Lock()
        self._waiting: list[Addr] = []
        self._waiting_bytes = 0
        self._deferred = 0

    def initialize(self) -> None:
        """Be ready for use: a lender is, since it was made."""

    def memalloc(self, size: int) -> Any:
        """Return a ``numba.cuda.MemoryPointer`` to ``size`` bytes."""
        lender = self._lender()
        if self._ended and self._enough() and not self._deferred:
            self._settle(lender)
        try:
            address = lender.lend(size, DEFAULT)
        except OutOfMemory:
            if self._deferred or not self._settle(lender):
                raise
            address = lender.lend(size, DEFAULT)
        return self.cuda.MemoryPointer(
            weakref.proxy(self.context),
            ctypes.c_void_p(address),
            size,
            finalizer=partial(self._ended.append, (address, Size(size))),
        )

    def share(self, memory: Any) -> Any:
        """Refuse: this memory has no handle that Numba could send."""
        raise MisuseError(
            f"{memory!r} cannot be shared with other processes by Numba: allocate it "
            "with Numba's own memory manager, or send a copy"
        )

    def memory_info(self) -> Any:
        """Return the device's free and total bytes."""
        info = self._lender().driver.memory_info()
        return self.cuda.MemoryInfo(free=info.free, total=info.total)

    def reset(self) -> None:
        """Give back what is no longer used."""
        super().reset()  # type: ignore[misc]  # of the class this is mixed with
        self._settle(self._lender())

    @contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """Wait for nothing in the ``with`` block: arrays that end are kept."""
        with super().defer_cleanup():  # type: ignore[misc]  # as above
            self._deferred += 1
            try:
                yield
            finally:
                self._deferred -= 1

    def _lender(self) -> Lender:
        return type(self).lenders(self.context.device.id)

    def _enough(self) -> bool:
        with self._lock:
            self._gather()
            return len(self._waiting) >= _MANY or self._waiting_bytes >= _MUCH

    def _settle(self, lender: Lender) -> bool:
        """Wait for all work, give back what ended before; return whether any did."""
        with self._lock:
            self._gather()
            if not self._waiting:
                return False
            lender.driver.synchronize()
            addresses, self._waiting = self._waiting, []
            self._waiting_bytes = 0
        for address in addresses:
            lender.take_back(address)
        lender.drain()
        return True

    def _gather(self) -> None:
        # Apart, because a finaliser may append at any time, inside this lock too.
        while self._ended:
            address, size = self._ended.popleft()
            self._waiting.append(address)
            self._waiting_bytes += size
