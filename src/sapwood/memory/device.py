"""One device: its driver, its pages, its heap, and the stream in use.

Everything that works on device memory is handed a `Device`; nothing else is global.
"""

from __future__ import annotations

import threading
from collections import deque
from contextvars import ContextVar
from typing import Any, Protocol

from sapwood.driver.api import Driver, FunctionHandle, ModuleHandle
from sapwood.driver.streams import Stream, current_stream
from sapwood.memory.heap import Heap
from sapwood.memory.storage import Storage
from sapwood.units import Size

__all__ = ["Device", "Route"]


class Route(Protocol):
    """Where allocations of this thread go while something watches or captures."""

    def allocate(self, size: Size, stream: Stream) -> Storage: ...


_route: ContextVar[Route | None] = ContextVar("sapwood_route", default=None)


class Device:
    """A driver with memory management on top; made and closed by the runtime.

    ``lock`` guards pages, heap and everything that decides by them. ``dropped``
    receives what finalisers give back, and is drained under the lock.
    """

    def __init__(self, driver: Driver) -> None: ...

    def stream(self) -> Stream:
        """Return this thread's current stream."""

    def allocate(self, size: Size) -> Storage:
        """Return fresh bytes, 512-aligned, for use on the current stream.

        Raises `OutOfMemory`. Goes to the route of this thread, if there is one.
        """

    def function(self, image: bytes, name: str) -> FunctionHandle:
        """Return a kernel of a module, loading the module once."""

    def drain(self) -> None:
        """Give back what finalisers have queued; called under the lock."""
