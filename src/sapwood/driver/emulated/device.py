"""The emulated device: real virtual memory, queues of work, and kernels in Python.

It is stricter than hardware: wrong addresses, handles and captures are errors, fresh
memory is poisoned, and the schedule decides when work runs. Kernels run under the
device's lock, on the thread that lets them. A failure of work is reported as a GPU
does, by the next call that gives work to, or waits for, what comes after it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from itertools import count
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

from sapwood.driver.api import (
    Abilities,
    Access,
    CaptureStatus,
    CopyOp,
    EventHandle,
    ExecHandle,
    ExtentHandle,
    FunctionHandle,
    GraphHandle,
    HostOp,
    KernelOp,
    MemoryInfo,
    ModuleHandle,
    NodeHandle,
    Op,
    Pointer,
    SetOp,
    StreamHandle,
)
from sapwood.driver.emulated.flow import Flow
from sapwood.driver.emulated.graphs import Graph
from sapwood.driver.emulated.kernels import refusal
from sapwood.driver.emulated.memory import Memory
from sapwood.driver.emulated.outside import FIRST_HANDLE
from sapwood.driver.emulated.schedules import schedule_named
from sapwood.driver.emulated.work import Work
from sapwood.driver.results import Refusal, Result
from sapwood.errors import MisuseError
from sapwood.uncollected import uncollected
from sapwood.units import Addr, Size

__all__ = ["Emulated"]

P = ParamSpec("P")
R = TypeVar("R")

_TOTAL = Size(4 << 30)
_PAGE = Size(2 << 20)

_devices: WeakSet[Emulated] = WeakSet()


def _call(
    method: Callable[Concatenate[Emulated, P], R],
) -> Callable[Concatenate[Emulated, P], R]:
    """Make a method a device call: one at a time, its refusals named after it."""
    name = method.__name__

    @wraps(method)
    def call(self: Emulated, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            if self._barred is not None:
                raise self._barred.error(name)
            try:
                # A device in C has no finaliser run inside a call.
                return uncollected(object(), method, self, *args, **kwargs)
            except Refusal as refusal:
                raise refusal.error(name) from refusal.__cause__
            except OSError as error:
                raise _no_room(error).error(name) from error

    return call


class Emulated:
    """A device made of this process's memory and Python functions.

    ``total`` is its physical memory and ``page`` the granule, in bytes. ``schedule``
    is ``"earliest"`` (work runs when it is submitted), ``"latest"`` (when somebody
    waits for it) or ``"random:<seed>"``. Not for use in a forked child. Raises
    `MisuseError` for a page or schedule that cannot be, `DriverError` where the
    system gives no memory.
    """

    def __init__(
        self, total: Size = _TOTAL, page: Size = _PAGE, schedule: str = "earliest"
    ) -> None:
        smallest = os.sysconf("SC_PAGE_SIZE")
        if page <= 0 or page % smallest:
            raise MisuseError(
                f"a page of {page} bytes cannot be mapped: choose a multiple of "
                f"{smallest}"
            )
        order, handles = schedule_named(schedule), count(FIRST_HANDLE)
        self._abilities = Abilities("emulated", "emulated", page, exact_addresses=True)
        self._lock = threading.RLock()
        self._barred: Refusal | None = None
        try:
            self._memory = Memory(total, page, handles)
        except Refusal as refusal:
            raise refusal.error("open") from refusal.__cause__
        self._flow = Flow(order, handles)
        self._work = Work(self._memory, order, self._call_host, handles)
        self._handles = handles
        _devices.add(self)

    @property
    def abilities(self) -> Abilities:
        """What this device is; never fails."""
        return self._abilities

    def live_handles(self) -> dict[str, int]:
        """Return how many of each kind of thing have not been given back."""
        return {
            "reservations": len(self._memory.reservations),
            "extents": len(self._memory.extents),
            "mappings": len(self._memory.mappings),
            "host": len(self._memory.host),
            "registered": len(self._memory.registered),
            "streams": len(self._flow.streams),
            "events": len(self._flow.events),
            "modules": len(self._work.modules),
            "graphs": len(self._work.graphs),
            "execs": len(self._work.execs),
        }

    @_call
    def memory_info(self) -> MemoryInfo:
        physical = self._memory.physical
        return MemoryInfo(Size(physical.total - physical.used), physical.total)

    def close(self) -> None:
        """Give all memory back to the system; closing again does nothing."""
        with self._lock:
            if self._barred is None:
                self._bar("the device was closed: open another one")
                self._memory.close()

    def orphan(self) -> None:
        """Refuse all further calls: this is a forked child, and not its device."""
        self._lock = threading.RLock()  # the old one may be held by a lost thread
        self._bar(
            "the device belongs to the process that forked: make a Runtime in this "
            "process, or start processes by spawn"
        )

    def _bar(self, why: str) -> None:
        self._barred = Refusal(Result.DEINITIALIZED, why)

    def _call_host(self, call: Callable[[], None]) -> None:
        self._barred = Refusal(
            Result.NOT_PERMITTED, "a host function runs, which may make no device call"
        )
        try:
            call()
        finally:
            self._barred = None

    # Memory.

    @_call
    def reserve(self, size: Size, at: Addr | None = None) -> Addr:
        return self._memory.reserve(size, at)

    @_call
    def unreserve(self, address: Addr, size: Size) -> None:
        self._memory.unreserve(address, size)

    @_call
    def create(self, size: Size) -> ExtentHandle:
        return self._memory.create(size)

    @_call
    def release(self, extent: ExtentHandle) -> None:
        self._memory.release(extent)

    @_call
    def map(self, address: Addr, extent: ExtentHandle) -> None:
        self._memory.map(address, extent)

    @_call
    def set_access(self, address: Addr, size: Size, access: Access) -> None:
        self._memory.set_access(address, size, access)

    @_call
    def unmap(self, address: Addr, size: Size) -> None:
        self._memory.unmap(address, size)

    @_call
    def allocate_host(self, size: Size) -> Addr:
        return self._memory.allocate_host(size)

    @_call
    def free_host(self, address: Addr) -> None:
        self._memory.free_host(address)

    @_call
    def register_host(self, address: Addr, size: Size) -> None:
        self._memory.register_host(address, size)

    @_call
    def unregister_host(self, address: Addr) -> None:
        self._memory.unregister_host(address)

    # Streams and events.

    @_call
    def create_stream(self) -> StreamHandle:
        return self._flow.create()

    @_call
    def destroy_stream(self, stream: StreamHandle) -> None:
        self._flow.destroy(stream)

    @_call
    def adopt_stream(self, raw: int) -> StreamHandle:
        return self._flow.adopt(raw)

    @_call
    def raw_stream(self, stream: StreamHandle) -> int:
        return self._flow.raw(stream)

    @_call
    def open_foreign_stream(self) -> int:
        """Return the raw number of a new stream, as if another library had made it."""
        return self._flow.open_foreign()

    @_call
    def close_foreign_stream(self, raw: int) -> None:
        """End what `open_foreign_stream` gave; raises `DriverError` while adopted."""
        self._flow.close_foreign(raw)

    @_call
    def synchronize_stream(self, stream: StreamHandle) -> None:
        self._flow.synchronize(stream)

    @_call
    def query_stream(self, stream: StreamHandle) -> bool:
        return self._flow.query(stream)

    @_call
    def create_event(self, timing: bool = False) -> EventHandle:
        return self._flow.create_event(timing)

    @_call
    def destroy_event(self, event: EventHandle) -> None:
        self._flow.events.take(event)

    @_call
    def record_event(self, event: EventHandle, stream: StreamHandle) -> None:
        self._flow.record(event, stream)

    @_call
    def wait_event(self, stream: StreamHandle, event: EventHandle) -> None:
        self._flow.wait(stream, event)

    @_call
    def query_event(self, event: EventHandle) -> bool:
        return self._flow.query_event(event)

    @_call
    def synchronize_event(self, event: EventHandle) -> None:
        self._flow.synchronize_event(event)

    @_call
    def elapsed(self, start: EventHandle, end: EventHandle) -> float:
        return 1e3 * (self._flow.time(end) - self._flow.time(start))

    @_call
    def synchronize(self) -> None:
        self._flow.synchronize_all()

    # Work.

    @_call
    def load_module(self, image: bytes) -> ModuleHandle:
        return self._work.load(image)

    @_call
    def unload_module(self, module: ModuleHandle) -> None:
        self._work.unload(module)

    @_call
    def find_function(self, module: ModuleHandle, name: str) -> FunctionHandle:
        return self._work.function(module, name)

    @_call
    def pointers(
        self, function: FunctionHandle, params: bytes
    ) -> tuple[Pointer, ...] | None:
        kernel, _ = self._work.functions.find(function)
        try:
            return kernel.pointers(params)
        except (RecursionError, MemoryError):
            raise  # no fault of the parameters
        except Exception as error:
            raise refusal(kernel, params, error) from error

    @_call
    def launch(self, op: KernelOp, stream: StreamHandle) -> None:
        self._flow.submit(stream, op, self._work.single(op))

    @_call
    def copy(self, dst: Addr, src: Addr, size: Size, stream: StreamHandle) -> None:
        op = CopyOp(dst, src, size)
        self._flow.submit(stream, op, self._work.single(op))

    @_call
    def set(self, dst: Addr, value: int, size: Size, stream: StreamHandle) -> None:
        op = SetOp(dst, value, size)
        self._flow.submit(stream, op, self._work.single(op))

    @_call
    def call_host(self, call: Callable[[], None], stream: StreamHandle) -> None:
        op = HostOp(call)
        self._flow.submit(stream, op, self._work.single(op))

    @_call
    def upload(self, dst: Addr, data: memoryview, stream: StreamHandle) -> None:
        self._flow.run(stream, "upload on", self._work.upload(dst, data.tobytes()))

    @_call
    def download(self, src: Addr, size: Size, stream: StreamHandle) -> bytearray:
        data = bytearray(size)
        self._flow.run(stream, "download on", self._work.download(src, data))
        self._flow.synchronize(stream)
        return data

    # Capture and graphs.

    @_call
    def begin_capture(self, stream: StreamHandle) -> None:
        self._flow.begin(stream)

    @_call
    def end_capture(self, stream: StreamHandle) -> GraphHandle:
        return self._work.graphs.add(self._flow.end(stream))

    @_call
    def capture_status(self, stream: StreamHandle) -> CaptureStatus:
        return self._flow.status(stream)

    @_call
    def counter(self, stream: StreamHandle) -> Callable[[], int]:
        return self._flow.counter(stream)

    @_call
    def create_graph(self) -> GraphHandle:
        return self._work.graphs.add(Graph(self._handles))

    @_call
    def destroy_graph(self, graph: GraphHandle) -> None:
        self._work.graphs.take(graph)

    @_call
    def add_node(
        self, graph: GraphHandle, op: Op, after: tuple[NodeHandle, ...] = ()
    ) -> NodeHandle:
        return self._work.add_node(graph, op, after)

    @_call
    def nodes(self, graph: GraphHandle) -> tuple[NodeHandle, ...]:
        return tuple(self._work.graphs.find(graph).nodes)

    @_call
    def edges(self, graph: GraphHandle) -> tuple[tuple[NodeHandle, NodeHandle], ...]:
        return self._work.graphs.find(graph).edges()

    @_call
    def node_op(self, node: NodeHandle) -> Op:
        return self._work.node(node).op

    @_call
    def instantiate(self, graph: GraphHandle) -> ExecHandle:
        return self._work.instantiate(graph)

    @_call
    def destroy_exec(self, exec_: ExecHandle) -> None:
        self._work.execs.take(exec_)

    @_call
    def set_op(self, exec_: ExecHandle, node: NodeHandle, op: Op) -> None:
        self._work.set_op(exec_, node, op)

    @_call
    def launch_graph(self, exec_: ExecHandle, stream: StreamHandle) -> None:
        self._flow.run(stream, "launch a graph on", self._work.program(exec_))

    @_call
    def adopt_graph(self, raw: int) -> GraphHandle:
        raise _nobody_else(raw)

    @_call
    def words(self, graph: GraphHandle) -> frozenset[Addr] | None:
        return self._work.words(graph)

    @_call
    def surround(
        self, graph: GraphHandle, first: tuple[Op, ...], last: tuple[Op, ...]
    ) -> tuple[tuple[NodeHandle, ...], tuple[NodeHandle, ...]]:
        return self._work.surround(graph, first, last)

    @_call
    def adopt_exec(self, graph: GraphHandle, raw: int) -> ExecHandle:
        self._work.graphs.find(graph)
        raise _nobody_else(raw)


def _no_room(error: OSError) -> Refusal:
    return Refusal(
        Result.OUT_OF_MEMORY,
        f"the system gives no more memory or addresses ({error.strerror}): give "
        "some back, or raise vm.max_map_count or `ulimit -v`",
    )


def _orphan_devices() -> None:
    for device in list(_devices):
        device.orphan()


os.register_at_fork(after_in_child=_orphan_devices)


def _nobody_else(raw: int) -> Refusal:
    return Refusal(
        Result.INVALID_HANDLE,
        f"{raw:#x} is nothing of this device: no other library captures on it",
    )
