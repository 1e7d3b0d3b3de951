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
        self._deferred = 0

    def initialize(self) -> None:
        """Be ready for use: a lender is, since it was made."""

    def memalloc(self, size: int) -> Any:
        """Return a ``numba.cuda.MemoryPointer`` to ``size`` bytes."""
        lender = self._lender()
        if not self._deferred and self._is_worth_waiting():
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

    def _is_worth_waiting(self) -> bool:
        """Return whether what has ended is many arrays, or much memory."""
        ended = self._ended.copy()  # a finaliser may append at any time
        return len(ended) >= _MANY or sum(size for _, size in ended) >= _MUCH

    def _settle(self, lender: Lender) -> bool:
        """Wait for all work, give back what ended before; return whether any did."""
        with self._lock:
            number = len(self._ended)
            if not number:
                return False
            lender.driver.synchronize()
            ended = [self._ended.popleft() for _ in range(number)]
        for address, _ in ended:
            lender.take_back(address)
        lender.drain()
        return True
