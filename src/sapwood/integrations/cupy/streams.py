"""CuPy's current stream and the device's: one and the same.

CuPy launches by itself, so nobody sees which array a stream uses. Therefore what is
inside ``with stream:`` runs after all that was given before to the stream around it,
and what comes behind runs after it. Other streams of CuPy's are ordered by hand, as
they are without this library.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self
from weakref import WeakValueDictionary

import cupy
from cupy._core import syncdetect

from sapwood.driver.api import Driver, StreamHandle
from sapwood.driver.streams import Queue, Stream
from sapwood.errors import DriverError
from sapwood.integrations.cupy.memory import allocator
from sapwood.memory.framework import Allocate
from sapwood.tree import session
from sapwood.tree.session import Session, raising_line
from sapwood.units import Size

__all__ = ["CupyFramework", "CupyStream"]

_REMEDIES = {
    "H2D": "Make the array outside the graphed function and pass it in, or use "
    'on_unsupported="eager"',
    "cu": "CuPy captures no calls of cuBLAS, cuSOLVER, cuRAND and such: for matrix "
    "products use @ on arrays of rt.array, for random numbers rt.generator; call the "
    "rest outside the graphed function",
}
_HOST = (
    "Return the array, or compute it outside the graphed function, or use "
    'on_unsupported="eager"'
)


class _Raw:
    """A stream as other libraries take it."""

    def __init__(self, raw: int) -> None:
        self.raw = raw

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.raw


class CupyStream(Stream):
    """A stream; ``with stream:`` makes it CuPy's current one."""

    __slots__ = ("_aside", "cupy", "framework")

    def __init__(
        self,
        framework: CupyFramework,
        driver: Driver,
        handle: StreamHandle,
        name: str,
        dropped: Queue,
        heir: Stream | None = None,
    ) -> None:
        super().__init__(driver, handle, name, dropped, heir)
        self.framework = framework
        self.cupy: Any = None
        self._aside = False

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.driver.raw_stream(self.handle)

    def __enter__(self) -> Self:
        around = self.framework.current(self.driver, self.dropped)
        if self.cupy is None:
            raw = _Raw(self.driver.raw_stream(self.handle))
            self.cupy = cupy.cuda.Stream.from_external(raw)
        # What is captured does not run, and is no work to wait for.
        self._aside = self.fork is not None and self.fork.origin is self
        super().__enter__()
        try:
            if around is not self and not self._aside:
                self.wait(around)
        except DriverError:
            super().__exit__()
            raise
        self.cupy.__enter__()
        self.framework.made[self.cupy.ptr] = self
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.cupy.__exit__(*error)
        around = self.framework.current(self.driver, self.dropped)
        if around is not self and not self._aside:
            try:
                around.wait(self)
            except DriverError:
                # What comes next is after this all the same.
                self.synchronize()
                raise


class CupyFramework:
    """CuPy's arrays on one GPU."""

    traps = False

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.made: WeakValueDictionary[int, Stream] = WeakValueDictionary()
        self._adopted: dict[int, Stream] = {}
        self._theirs: list[Any] = []
        self._null: int = cupy.cuda.Stream.null.ptr

    def default(self, driver: Driver, dropped: Queue) -> Stream:
        """Return CuPy's default stream."""
        handle = driver.adopt_stream(self._null)
        stream = self.stream(driver, handle, "default", dropped)
        self._adopted[self._null] = stream
        return stream

    def stream(
        self,
        driver: Driver,
        handle: StreamHandle,
        name: str,
        dropped: Queue,
        heir: Stream | None = None,
    ) -> Stream:
        """Return a stream over a handle."""
        return CupyStream(self, driver, handle, name, dropped, heir)

    def current(self, driver: Driver, dropped: Queue) -> Stream:
        """Return this thread's current stream, whoever made it."""
        ptr = cupy.cuda.get_current_stream().ptr
        found = self._adopted.get(ptr) or self.made.get(ptr)
        return found or self._adopt(ptr, driver, dropped)

    def _adopt(self, ptr: int, driver: Driver, dropped: Queue) -> Stream:
        handle = driver.adopt_stream(ptr)
        # CuPy destroys a stream that nobody has, and CUDA uses its address again.
        self._theirs.append(cupy.cuda.get_current_stream())
        stream = self.stream(driver, handle, f"CuPy's {ptr:#x}", dropped)
        self._adopted[ptr] = stream
        return stream

    def here(self) -> Stream | None:
        """Return the current stream if it was used before; for finalisers."""
        ptr = cupy.cuda.get_current_stream().ptr
        return self._adopted.get(ptr) or self.made.get(ptr)

    def trim(self) -> Size:
        """Have CuPy's pool give back what it keeps; not while this thread captures."""
        if cupy.cuda.get_current_stream().is_capturing():
            return Size(0)
        pool = cupy.get_default_memory_pool()
        before = pool.total_bytes()
        pool.free_all_blocks()
        return Size(before - pool.total_bytes())

    def close(self) -> None:
        """Let go of all streams."""
        self._adopted.clear()
        self.made.clear()
        self._theirs.clear()

    @contextmanager
    def watched(self, allocate: Allocate) -> Iterator[None]:
        """Allocate from ``allocate``, and refuse what waits on the host."""
        watching = session.current()
        strict = watching is not None and not watching.tolerant
        with cupy.cuda.using_allocator(allocator(allocate, self)):
            before = syncdetect._is_allowed()  # noqa: SLF001 - its public face warns
            syncdetect._thread_local.allowed = before and not strict  # noqa: SLF001
            try:
                yield
            except RuntimeError as error:
                if watching is not None:
                    _told(watching, error)
                raise
            finally:
                syncdetect._thread_local.allowed = before  # noqa: SLF001


def _told(watching: Session, error: RuntimeError) -> None:
    """Tell the session of an error that says what no capture can take."""
    text, where = str(error), raising_line(error)
    if isinstance(error, syncdetect.DeviceSynchronized) or "D2H" in text:
        watching.refuse("a value is needed on the host", _HOST, where)
    elif "captur" in text.lower():
        remedy = next((r for word, r in _REMEDIES.items() if word in text), _HOST)
        watching.refuse(f"CuPy says: {text}", remedy, where)
