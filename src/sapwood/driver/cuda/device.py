"""The CUDA device: a GPU behind the Protocol, its rules kept where CUDA is lenient.

Handles are CUDA's own addresses. Work that fails ends the device, as GPUs do: every
later call says so. Streams that other libraries made are not waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

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
from sapwood.driver.check import check_op
from sapwood.driver.cuda.bindings import open_library
from sapwood.driver.cuda.flow import Flow
from sapwood.driver.cuda.graphs import Graphs
from sapwood.driver.cuda.hosts import Hosts
from sapwood.driver.cuda.kernels import Kernels
from sapwood.driver.cuda.memory import Memory
from sapwood.driver.cuda.place import Place
from sapwood.driver.cuda.process import watch
from sapwood.driver.native import Native
from sapwood.driver.release import Release
from sapwood.driver.results import Refusal, Result
from sapwood.units import Addr, Size

__all__ = ["Cuda"]

P = ParamSpec("P")
R = TypeVar("R")


def _bare(
    method: Callable[Concatenate[Cuda, P], R],
) -> Callable[Concatenate[Cuda, P], R]:
    """Make a method a device call, its refusals named after it.

    For what CUDA answers without a context, and allows while capturing: launching a
    graph takes half as long again otherwise.
    """
    name = method.__name__

    @wraps(method)
    def call(self: Cuda, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._barred is not None:
            raise self._barred.error(name)
        try:
            return method(self, *args, **kwargs)
        except Refusal as refusal:
            raise refusal.error(name) from refusal.__cause__

    return call


def _call(
    method: Callable[Concatenate[Cuda, P], R],
) -> Callable[Concatenate[Cuda, P], R]:
    """Make a method a device call that is made in the device's place."""

    @wraps(method)
    def placed(self: Cuda, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._place.here():
            return method(self, *args, **kwargs)

    return _bare(placed)


class Cuda:
    """An NVIDIA GPU, by its number among those that the process sees.

    Not for use in a forked child. Raises `NoDevice`, with the reason, where there is
    none, or no driver for it that is new enough.
    """

    def __init__(self, ordinal: int = 0) -> None:
        library = open_library()
        self._library = library
        self._barred: Refusal | None = None
        self._place = Place(library, ordinal)
        self._memory = Memory(library, ordinal)
        self._hosts = Hosts(library)
        self._flow = Flow(library, self._hosts, self._place.device)
        self._kernels = Kernels(library)
        self._graphs = Graphs(library, self._place.context, self._kernels, self._hosts)
        self._abilities = Abilities(
            self._place.name,
            "cuda",
            self._memory.page,
            exact_addresses=False,
            ordinal=ordinal,
        )
        watch(self)

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
            "modules": len(self._kernels.modules),
            "graphs": len(self._graphs.graphs),
            "execs": len(self._graphs.execs),
        }

    @_call
    def memory_info(self) -> MemoryInfo:
        return self._memory.info()

    def close(self) -> None:
        """Wait, and give everything back; closing again does nothing."""
        if self._barred is not None:
            return
        memory, flow, graphs = self._memory, self._flow, self._graphs
        with Release() as release:
            release.each(self.destroy_stream, flow.origins)
            release(self._settle)
            release.each(self.destroy_exec, graphs.execs.values)
            release.each(self.destroy_graph, graphs.graphs.values)
            release.each(self.unload_module, self._kernels.modules.values)
            release(self._unload_kept)
            release.each(self.destroy_event, flow.events.values)
            release.each(self.destroy_stream, flow.streams.handles())
            release.each(self.release, memory.extents.values)
            release.each(self.free_host, memory.host)
            release.each(self.unregister_host, memory.registered)
            for address, size in list(memory.mappings.items()):
                release(self.unmap, address, size)
            for address, size in list(memory.reservations.items()):
                release(self.unreserve, address, size)
            release(self._leave)
            self._bar("the device was closed: open another one")

    def orphan(self) -> None:
        """Refuse all further calls: this is a forked child, and not its device."""
        self._bar("the device belongs to the process that forked: use spawn instead")

    def _bar(self, why: str) -> None:
        self._barred = Refusal(Result.DEINITIALIZED, why)

    @_call
    def _settle(self) -> None:
        self._flow.settle()

    @_call
    def _unload_kept(self) -> None:
        self._kernels.unload_kept()

    @_bare
    def _leave(self) -> None:
        self._place.leave()

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

    # Recordings map dozens of extents, and to be in the device's place takes longer.
    @_bare
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

    @_bare
    def raw_stream(self, stream: StreamHandle) -> int:
        return self._flow.streams.raw(stream)

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
        self._flow.destroy_event(event)

    @_bare
    def record_event(self, event: EventHandle, stream: StreamHandle) -> None:
        if stream in self._flow.streams.foreign:
            with self._place.here():
                self._flow.record(event, stream)
        else:
            self._flow.record(event, stream)

    @_bare
    def wait_event(self, stream: StreamHandle, event: EventHandle) -> None:
        if self._flow.origins or stream in self._flow.streams.foreign:
            with self._place.here():
                self._flow.join(stream, event)
        else:
            self._flow.wait(stream, event)

    @_call
    def query_event(self, event: EventHandle) -> bool:
        return self._flow.query_event(event)

    @_call
    def synchronize_event(self, event: EventHandle) -> None:
        self._flow.synchronize_event(event)

    @_call
    def elapsed(self, start: EventHandle, end: EventHandle) -> float:
        return self._flow.elapsed(start, end)

    @_call
    def synchronize(self) -> None:
        self._flow.synchronize_all()

    # Work.

    @_call
    def load_module(self, image: bytes) -> ModuleHandle:
        return self._kernels.load(image)

    @_call
    def unload_module(self, module: ModuleHandle) -> None:
        self._kernels.unload(module)

    @_call
    def find_function(self, module: ModuleHandle, name: str) -> FunctionHandle:
        return self._kernels.find(module, name)

    @_call
    def pointers(
        self, function: FunctionHandle, params: bytes
    ) -> tuple[Pointer, ...] | None:
        return self._kernels.pointers(function, params)

    @_call
    def launch(self, op: KernelOp, stream: StreamHandle) -> None:
        raw = self._flow.streams.find(stream)
        self._hosts.check()
        self._kernels.launch(op, raw)

    @_call
    def copy(self, dst: Addr, src: Addr, size: Size, stream: StreamHandle) -> None:
        raw = self._flow.streams.find(stream)
        check_op(CopyOp(dst, src, size))
        self._hosts.check()
        if size:
            self._library(self._library.cu.cuMemcpyAsync, dst, src, size, raw)

    @_call
    def set(self, dst: Addr, value: int, size: Size, stream: StreamHandle) -> None:
        raw = self._flow.streams.find(stream)
        check_op(SetOp(dst, value, size))
        self._hosts.check()
        if size:
            self._library(self._library.cu.cuMemsetD8Async, dst, value, size, raw)

    @_call
    def call_host(self, call: Callable[[], None], stream: StreamHandle) -> None:
        op = HostOp(call)
        self._flow.call_host(
            stream, call, lambda graph, before: self._graphs.node(graph, op, before)
        )

    @_call
    def upload(self, dst: Addr, data: memoryview, stream: StreamHandle) -> None:
        raw = self._flow.idle(stream, "upload on")
        if data.nbytes:
            self._memory.upload(dst, data, raw)

    @_call
    def download(self, src: Addr, size: Size, stream: StreamHandle) -> bytearray:
        raw = self._flow.idle(stream, "download on")
        data = self._memory.download(src, size, raw)
        self._hosts.check()
        return data

    # Capture and graphs.

    @_call
    def begin_capture(self, stream: StreamHandle) -> None:
        self._flow.begin(stream)

    @_call
    def end_capture(self, stream: StreamHandle) -> GraphHandle:
        return self._graphs.own(self._flow.end(stream))

    @_bare
    def capture_status(self, stream: StreamHandle) -> CaptureStatus:
        if stream in self._flow.streams.foreign:
            with self._place.here():
                return self._flow.status(stream)
        return self._flow.status(stream)

    @_call
    def counter(self, stream: StreamHandle) -> Callable[[], int]:
        return self._flow.counter(stream)

    @_call
    def create_graph(self) -> GraphHandle:
        return self._graphs.create()

    @_call
    def destroy_graph(self, graph: GraphHandle) -> None:
        self._graphs.destroy(graph)

    @_call
    def add_node(
        self, graph: GraphHandle, op: Op, after: tuple[NodeHandle, ...] = ()
    ) -> NodeHandle:
        return self._graphs.add(graph, op, after)

    @_call
    def nodes(self, graph: GraphHandle) -> tuple[NodeHandle, ...]:
        return self._graphs.nodes(graph)

    @_call
    def edges(self, graph: GraphHandle) -> tuple[tuple[NodeHandle, NodeHandle], ...]:
        return self._graphs.edges(graph)

    @_call
    def node_op(self, node: NodeHandle) -> Op:
        return self._graphs.op(node)

    @_call
    def instantiate(self, graph: GraphHandle) -> ExecHandle:
        return self._graphs.instantiate(graph)

    @_call
    def destroy_exec(self, exec_: ExecHandle) -> None:
        self._graphs.destroy_exec(exec_)

    @_bare
    def set_op(self, exec_: ExecHandle, node: NodeHandle, op: Op) -> None:
        with self._place.current:  # CUDA would crash where a thread has none
            self._graphs.set_op(exec_, node, op)

    @_bare
    def launch_graph(self, exec_: ExecHandle, stream: StreamHandle) -> None:
        flow, graph = self._flow, self._graphs.execs.find(exec_)
        # Asking CUDA whether the stream is capturing would cost a fifth of a launch.
        if not flow.origins and flow.streams.is_legacy(stream):
            with self._place.current:
                flow.launch(graph.raw, flow.streams.find(stream))
        elif flow.origins or stream in flow.streams.foreign:
            with self._place.here():
                flow.launch(graph.raw, flow.idle(stream, "launch a graph on"))
        else:
            flow.launch(graph.raw, flow.streams.find(stream))

    @_call
    def adopt_graph(self, raw: int) -> GraphHandle:
        return self._graphs.adopt(raw)

    @_call
    def words(self, graph: GraphHandle) -> frozenset[Addr] | None:
        return self._graphs.words(graph)

    @_call
    def surround(
        self, graph: GraphHandle, first: tuple[Op, ...], last: tuple[Op, ...]
    ) -> tuple[tuple[NodeHandle, ...], tuple[NodeHandle, ...]]:
        return self._graphs.surround(graph, first, last)

    @_call
    def adopt_exec(self, graph: GraphHandle, raw: int) -> ExecHandle:
        return self._graphs.adopt_exec(graph, raw)

    @_call
    def native(self, exec_: ExecHandle, nodes: Sequence[NodeHandle]) -> Native:
        return self._graphs.native(exec_, nodes)
