"""One device: its driver, its pages, its heap, and the stream in use.

Everything that works on device memory is handed a `Device`; nothing else is global.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Protocol

from sapwood.driver.api import Driver, FunctionHandle, ModuleHandle
from sapwood.driver.release import Release
from sapwood.driver.streams import Stream
from sapwood.errors import MisuseError
from sapwood.memory.framework import Framework
from sapwood.memory.heap import Heap, Opener
from sapwood.memory.pages import Pages
from sapwood.memory.returns import Returns
from sapwood.memory.storage import Storage
from sapwood.surroundings import follow
from sapwood.units import Mask, Size


class Route(Protocol):
    """Where this thread's allocations on a device go while a function is watched."""

    device: Device

    def allocate(self, size: Size, stream: Stream) -> Storage: ...


_route: ContextVar[Route | None] = ContextVar("sapwood_route", default=None)
follow(_route)


class routed:
    """``with routed(route):`` sends this thread's allocations through a route."""

    def __init__(self, route: Route | None) -> None:
        self.route = route

    def __enter__(self) -> None:
        self._token = _route.set(self.route)

    def __exit__(self, *_: object) -> None:
        _route.reset(self._token)


class Device:
    """A driver with memory management on top; made and closed by the runtime.

    ``lock`` guards pages, heap and everything that decides by them; ``is_mine`` tells
    whether this thread has it. ``opener`` opens the heap's allocator; ``framework`` is
    that of the arrays. A device that ``owns_driver`` closes it at the end.
    """

    def __init__(
        self,
        driver: Driver,
        opener: Opener,
        memory_limit: Size | None = None,
        *,
        framework: Framework | None = None,
        owns_driver: bool = False,
    ) -> None:
        self.driver, self._owns_driver = driver, owns_driver
        self.framework = framework or Framework()
        self.lock = threading.RLock()
        self.is_mine: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined] # noqa: SLF001
        self.returns = Returns(self.lock)
        self.pages = Pages(driver, memory_limit)
        self.heap = Heap(driver, self.pages, self.returns, opener)
        self.closed = False
        self.finished = False
        self._names = itertools.count(1)
        self._modules: dict[bytes, ModuleHandle] = {}
        self._functions: dict[tuple[bytes, str], FunctionHandle] = {}
        self._kernels: dict[FunctionHandle, tuple[bytes, str]] = {}
        self.default = self.framework.default(driver, self.returns)
        self._successor: Stream | None = None

    def check_open(self, what: str) -> None:
        """Raise `MisuseError` where the device was closed; ``what`` went with it."""
        if self.closed:
            raise MisuseError(
                f"{what} is closed. Make a new one, and arrays and functions on it"
            )

    def new_stream(self) -> Stream:
        """Return a new stream, destroyed when it is garbage, or a framework's own.

        Work on it that is not over then is ordered before that of a successor.
        """
        lasting = self.framework.lasting(self.driver, self.returns)
        if lasting is not None:
            return lasting
        with self.lock:
            if self._successor is None:
                self._successor = self.own_stream("successor")
            successor = self._successor
        return self.own_stream(f"s{next(self._names)}", successor)

    def own_stream(self, name: str, successor: Stream | None = None) -> Stream:
        """Return a new stream; nobody but a successor waits for one that is garbage."""
        handle = self.driver.create_stream()
        make = self.framework.stream
        return make(self.driver, handle, name, self.returns, successor)

    def stream(self) -> Stream:
        """Return this thread's current stream."""
        return self.framework.current(self.driver, self.returns) or self.default

    def allocate(self, size: Size) -> Storage:
        """Return fresh bytes, 512-aligned, for use on the current stream.

        Goes to the route of this thread, if there is one. Raises `OutOfMemory`.
        """
        route = _route.get()
        if route is not None and route.device is self:
            return route.allocate(size, self.stream())
        return self.allocate_on_heap(size, self.stream())

    def allocate_on_heap(self, size: Size, stream: Stream) -> Storage:
        """Return fresh bytes of the heap, whatever the route."""
        with self.lock:
            self.check_open("the runtime of these arrays")
            self.returns.drain_dropped()
            return self.heap.allocate(size, stream)

    def function(self, image: bytes, name: str) -> FunctionHandle:
        """Return a kernel of a module, loading the module once."""
        found = self._functions.get((image, name))
        if found is not None:
            return found
        with self.lock:
            # A module that was loaded now would never be unloaded.
            self.check_open("this runtime")
            if image not in self._modules:
                self._modules[image] = self.driver.load_module(image)
            found = self.driver.find_function(self._modules[image], name)
            self._functions[image, name] = found
            self._kernels[found] = (image, name)
            return found

    def name_of(self, function: FunctionHandle) -> tuple[bytes, str]:
        """Return the module image and the name of a kernel.

        A kernel that a framework loaded has no image here: its name serves `function`
        in this process alone.
        """
        known = self._kernels.get(function)
        if known is None:
            known = self._kernels[function] = b"", f"kernel {function:#x}"
            self._functions[known] = function
        return known

    def abandon(self, close: Callable[[], object]) -> None:
        """Have ``close`` called later, and close when nobody holds an array any more.

        A finaliser calls this, inside whatever lock: so it only queues the call.
        """

        def abandoned(_: object) -> None:
            close()

        self.returns.watch(self._close_if_idle)
        self.returns.append((abandoned, None))

    def _close_if_idle(self) -> None:
        held = self.pages.live or self.pages.lingering or self.heap.used()
        if not (held or self.closed):
            self.close()

    def close(self) -> None:
        """Give back all that nobody holds; the rest goes with its last holder."""
        self.closed = True
        with self.lock, Release() as release:
            release(self.returns.drain)
            self.pages.ends = True
            release(self.pages.close_lingering)
            release(self.pages.settle, Mask(-1))
            release(self.driver.synchronize)
            release(self.heap.close)
            release.each(self.driver.unload_module, self._modules.values())
            self._modules.clear()
            self._functions.clear()
            self.returns.close(self._finish)
            self.pages.on_empty = self._finish
            # What came back since the first time, before anybody would see to it.
            release(self.returns.drain)
            release(self._finish)

    def _finish(self) -> None:
        """End the last stream and the driver once nobody holds any memory."""
        pages = self.pages
        used = self.heap.allocator.base is not None or pages.extents or pages.lingering
        if self.finished or used:
            return
        self.finished = True
        with Release() as release:
            # The streams' finalisers queue what destroys them.
            self.__dict__.pop("default", None)
            self._successor = None
            self.framework.close()
            release(self.returns.drain)
            if self._owns_driver:
                release(self.driver.close)
                self.returns.end()
