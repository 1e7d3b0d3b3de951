"""CuPy's current stream and the device's: one and the same, as guests have it."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from itertools import accumulate
from operator import mul
from typing import Any, Final

import cupy
import cupyx
from cupy._core import syncdetect
from cupy.cuda.stream import _BaseStream

from sapwood.driver.api import Driver
from sapwood.driver.streams import Queue, Stream
from sapwood.integrations.cupy.array import KINDS
from sapwood.integrations.cupy.capturing import replaced
from sapwood.integrations.cupy.constants import load_kernels
from sapwood.integrations.cupy.memory import allocator
from sapwood.integrations.cupy.plans import plans
from sapwood.integrations.cupy.products import load_blas
from sapwood.integrations.strided import Layout
from sapwood.memory.framework import Allocate, GuestFramework, GuestStream, Manner
from sapwood.tree.record.host_data import MAKE_OUTSIDE, READ_OUTSIDE
from sapwood.tree.watch import session
from sapwood.tree.watch.session import Session, raising_line
from sapwood.units import Addr, Size

_REMEDIES = {
    "H2D": MAKE_OUTSIDE,
    "cuRAND": "Draw from cupy.random.default_rng(seed), made outside the function",
    "cudaError": "Wait for streams and events outside the graphed function, or in a "
    "function marked with @sw.eager",
    "cu": "CuPy captures no calls of cuSOLVER, cuSPARSE and such: call them outside "
    "the graphed function, or in a function marked with @sw.eager",
}


_is_capturing: Final[Callable[[Any], bool]] = _BaseStream.is_capturing
_launch_host_func: Final[Callable[..., None]] = _BaseStream.launch_host_func
_asking: Final = threading.local()


def notice_askers() -> None:
    """Have sessions told of everybody else who asks a stream of CuPy's, from now on."""

    @wraps(_is_capturing)
    def is_capturing(stream: Any) -> bool:
        watching = session.current()
        if watching is None or getattr(_asking, "is_cupy", False):
            return _is_capturing(stream)
        watching.asked()
        return watching.as_captured or _is_capturing(stream)

    @wraps(_launch_host_func)
    def launch_host_func(stream: Any, *args: Any) -> None:
        _asking.is_cupy = True
        try:
            _launch_host_func(stream, *args)
        finally:
            _asking.is_cupy = False

    _BaseStream.is_capturing = is_capturing
    _BaseStream.launch_host_func = launch_host_func


def current() -> int:
    """Return the number of CuPy's current stream."""
    ptr: int = cupy.cuda.get_current_stream().ptr
    return ptr


class _Raw:
    """A stream as other libraries take it."""

    def __init__(self, raw: int) -> None:
        self.raw = raw

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.raw


def stream_over(raw: int) -> Any:
    """Return CuPy's stream over one of others."""
    return cupy.cuda.Stream.from_external(_Raw(raw))


class _Errors(Manner):
    """What CuPy raises, and what it leaves be, on this thread."""

    def __init__(self) -> None:
        self._now = cupyx.geterr()

    def __call__(self) -> AbstractContextManager[object]:
        """Return a context in which that is so."""
        return nullcontext() if cupyx.geterr() == self._now else self._entered()

    @contextmanager
    def _entered(self) -> Iterator[None]:
        before = cupyx.seterr(**self._now)
        try:
            yield
        finally:
            cupyx.seterr(**before)


class CupyFramework(GuestFramework):
    """CuPy's arrays on one GPU."""

    # Each takes some 20 us of the host, where all at once take 120 (an H100's).
    most_copies = 4

    def __init__(self, ordinal: int) -> None:
        super().__init__()
        self.ordinal = ordinal
        self._theirs: list[Any] = []
        notice_askers()
        self._null: int = cupy.cuda.Stream.null.ptr
        self._outside, self._primed = threading.local(), threading.local()

    def remembered(self) -> Iterable[object]:
        """Return the plans of cuFFT that there are, and arrays of their memory."""
        return plans()

    def copier(
        self, layout: Layout, address: Addr, size: Size, room: Callable[[], bool]
    ) -> Callable[[], Any] | None:
        """Return what makes copies of a packed array that is first in its bytes.

        They are CuPy's own, in memory of its allocator.
        """
        if layout.kind >= len(KINDS):
            return None  # a tensor
        shape, strides = layout.shape, layout.strides
        memory = cupy.cuda.UnownedMemory(address, size, None, self.ordinal)
        at = cupy.cuda.MemoryPointer(memory, 0)
        array = KINDS[layout.kind](shape, layout.dtype, at, strides)
        rows, columns = (
            _packed(shape, array.itemsize),
            _packed(shape[::-1], array.itemsize),
        )
        packed = array.nbytes and strides in (rows, columns[::-1])
        return partial(_copied, array, room) if packed else None

    def forms(self, arrays: Sequence[Any]) -> list[Callable[[Any], object]]:
        """Return what gives an array the shape of these: no more can change."""
        return [partial(_set_shape, shape=each.shape) for each in arrays]

    def default(self, driver: Driver, dropped: Queue) -> Stream:
        """Return CuPy's default stream."""
        return self.adopt(self._null, "default", driver, dropped)

    def raw(self) -> int:
        """Return the number of CuPy's current stream."""
        return current()

    def inside(self, stream: GuestStream) -> tuple[int, AbstractContextManager[Any]]:
        """Return a stream's number, and CuPy's stream over it."""
        if stream.theirs is None:
            stream.theirs = stream_over(stream.driver.raw_stream(stream.handle))
        return stream.theirs.ptr, stream.theirs

    def adopt_current(self, raw: int, driver: Driver, dropped: Queue) -> Stream:
        """Return CuPy's current stream."""
        # CuPy destroys a stream that nobody has, and CUDA uses its address again.
        self._theirs.append(cupy.cuda.get_current_stream())
        return self.adopt(raw, f"CuPy's {raw:#x}", driver, dropped)

    def here(self) -> Stream | None:
        """Return the current stream if it was used before; for finalisers."""
        return self.known(self.raw())

    def trim(self) -> Size:
        """Have CuPy's pool give back what it keeps; not while this thread captures."""
        if self.included():
            return Size(0)
        pool = cupy.get_default_memory_pool()
        before = pool.total_bytes()
        pool.free_all_blocks()
        return Size(before - pool.total_bytes())

    def included(self) -> bool:
        """Return whether CuPy's current stream is being captured."""
        return _is_capturing(cupy.cuda.get_current_stream())

    def prime(self) -> None:
        """Have CuPy make this thread's handle of cuBLAS, and compile a kernel."""
        if not getattr(self._primed, "done", False):
            load_kernels()
            self._primed.done = load_blas()

    def close(self) -> None:
        """Let go of all streams."""
        super().close()
        self._theirs.clear()

    @contextmanager
    def watched(self, allocate: Allocate) -> Iterator[None]:
        """Allocate from ``allocate``, and refuse what waits on the host."""
        watching = session.current()
        strict = watching is not None and not watching.tolerant
        theirs = tensors() if watching is not None else None
        self._outside.rests = theirs.resting() if theirs else nullcontext
        stream = self.raw() if self.included() else None
        with (
            cupy.cuda.using_allocator(allocator(allocate, self)),
            replaced() if watching is not None else nullcontext(),
            theirs.watched(stream) if theirs else nullcontext(),
        ):
            before = self._outside.allowed = _may_wait()
            _let_wait(before and not strict)
            try:
                yield
            except RuntimeError as error:
                if watching is not None:
                    _told(watching, error)
                raise
            finally:
                _let_wait(before)

    def manner(self) -> Manner:
        """Return what makes contexts in which solvers raise as they would just now."""
        return _Errors()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Let work wait on the host, where that was allowed outside."""
        before = _may_wait()
        _let_wait(self._outside.allowed)
        try:
            with self._outside.rests():
                yield
        finally:
            _let_wait(before)


def tensors() -> Any:
    """Return what knows torch's tensors; None while no program has some on a GPU."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)  # None while torch is being imported
    if cuda is None or not cuda.is_initialized():
        return None
    return importlib.import_module("sapwood.integrations.cupy.tensors")


def _packed(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of a packed array, its last dimension innermost."""
    inner = (max(n, 1) for n in shape[:0:-1])
    return tuple(accumulate(inner, mul, initial=itemsize))[::-1][: len(shape)]


def _set_shape(array: Any, shape: tuple[int, ...]) -> None:
    array.shape = shape


def _copied(array: Any, room: Callable[[], bool]) -> Any:
    """Return a copy; where there is no memory, some is made."""
    while True:
        try:
            return array.copy(order="K")
        except cupy.cuda.memory.OutOfMemoryError:
            if not room():
                raise


def _may_wait() -> bool:
    """Return whether this thread may wait for the device."""
    allowed: bool = syncdetect._is_allowed()  # noqa: SLF001 - its public face warns
    return allowed


def _let_wait(allowed: bool) -> None:
    syncdetect._thread_local.allowed = allowed  # noqa: SLF001 - the same


def _told(watching: Session, error: RuntimeError) -> None:
    """Tell the session of an error that says what no capture can take."""
    text, where = str(error), raising_line(error)
    if isinstance(error, syncdetect.DeviceSynchronized) or "D2H" in text:
        watching.refuse("a value is needed on the host", READ_OUTSIDE, where)
    elif "captur" in text.lower():
        remedy = next(
            (r for word, r in _REMEDIES.items() if word in text), READ_OUTSIDE
        )
        watching.refuse(f"CuPy says: {text}", remedy, where)
