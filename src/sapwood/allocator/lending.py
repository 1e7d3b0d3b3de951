"""An allocator as other libraries ask for one: raw streams in, addresses out.

What a library gives back may come from a finaliser, which may run inside any lock:
where more than `free` has to be called, that is left to the next request.
"""

from __future__ import annotations

from collections import deque
from importlib import import_module
from typing import Any, Final

from sapwood.allocator.caching.allocator import Allocator
from sapwood.driver.api import Driver, StreamHandle
from sapwood.driver.release import Release
from sapwood.errors import DriverError, MisuseError
from sapwood.units import Addr, hex_address

DEFAULT: Final = 0
PER_THREAD: Final = 2  # which stream that is depends on the thread that asks


def imported(module: str, name: str, package: str) -> Any:
    """Return a library's module. Raises `MisuseError` where it cannot be imported."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MisuseError(
            f"{name} cannot be imported ({error}). Install it: pip install {package}"
        ) from error


class Lender:
    """Lends an allocator's blocks to one or several libraries, on any thread.

    ``device`` is the number that they know the GPU by, ``driver`` the allocator's,
    and nobody else adopts streams on it. A stream that
    was named here must live until the lender is closed, or `forget_stream` was called
    for it.
    """

    def __init__(self, allocator: Allocator, driver: Driver, device: int = 0) -> None:
        self.allocator, self.driver, self.device = allocator, driver, device
        self._streams: dict[int, StreamHandle] = {}
        self._adopted: set[StreamHandle] = set()
        self._lent: dict[Addr, int] = {}
        self._returned: deque[tuple[Addr, int]] = deque()

    def lend(self, size: int, stream: int) -> Addr:
        """Return the address of ``size`` bytes for work on a raw stream.

        No bytes are at address 0. Raises `OutOfMemory`.
        """
        if self._returned:
            self.drain()
        handle = self._streams.get(stream)
        if handle is None:
            handle = self._adopt(stream)
        address = self.allocator.malloc(size, handle)
        if address:
            self._lent[address] = stream
        return address

    def take_back(self, address: int, stream: int | None = None) -> None:
        """End the use of an address; safe inside a finaliser.

        Work on ``stream`` may still be using it, and work on the stream it was lent
        to. Raises `MisuseError` for what is not lent now.
        """
        lent = self._lent.pop(Addr(address), None)
        if lent is None:
            if address:
                raise MisuseError(
                    f"{hex_address(address)} is not lent: give each address back once, "
                    "to the allocator that it is from"
                )
        elif stream is None or stream == lent:
            self.allocator.free(Addr(address))
        else:
            self._returned.append((Addr(address), stream))

    def drain(self) -> None:
        """Free what came back on other streams; the next request does so too."""
        while self._returned:
            try:
                address, stream = self._returned.popleft()
            except IndexError:  # another thread was faster
                return
            self._protect(address, stream)
            self.allocator.free(address)

    def forget_stream(self, stream: int) -> None:
        """Let go of a raw stream that its owner is about to destroy.

        What it leaves goes to the default stream, which waits for its work.
        """
        self.drain()
        handle = self._streams.pop(stream, None)
        if handle is None:
            return
        successor = self._adopt(DEFAULT)
        event = self.driver.create_event()
        try:
            self.driver.record_event(event, handle)
            self.driver.wait_event(successor, event)
        finally:
            self.driver.destroy_event(event)
        self.allocator.forget_stream(handle, successor)
        self._adopted.discard(handle)
        self.driver.destroy_stream(handle)

    def lent(self) -> int:
        """Return how many addresses are lent now."""
        return len(self._lent)

    def close(self) -> None:
        """Let go of all streams; so what the allocator has cached goes to the driver.

        Raises `MisuseError` while addresses are lent.
        """
        if self._lent:
            raise MisuseError(
                f"{len(self._lent)} addresses are still lent. Drop the arrays and "
                "buffers of the libraries that this allocator serves"
            )
        self.drain()
        self.allocator.empty_cache()
        self._streams.clear()
        with Release() as release:
            while self._adopted:
                release(self.driver.destroy_stream, self._adopted.pop())

    def _adopt(self, stream: int) -> StreamHandle:
        """Return the handle of a raw stream: always another of the one per thread."""
        if stream in self._streams:
            return self._streams[stream]
        handle = self.driver.adopt_stream(stream)
        self._adopted.add(handle)
        if stream != PER_THREAD:
            self._streams[stream] = handle
        return handle

    def _protect(self, address: Addr, stream: int) -> None:
        try:
            self.allocator.record_stream(address, self._adopt(stream))
        except DriverError:
            # The stream is gone since; its work may not be.
            self.driver.synchronize()
