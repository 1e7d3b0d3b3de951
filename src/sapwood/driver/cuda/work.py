"""What streams are given: kernels, copies, sets, host functions, graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sapwood.driver.api import (
    CopyOp,
    ExecHandle,
    GraphHandle,
    HostOp,
    KernelOp,
    SetOp,
    StreamHandle,
)
from sapwood.driver.check import check_op
from sapwood.driver.cuda.bindings import Library
from sapwood.driver.cuda.flow import Flow
from sapwood.driver.cuda.graphs import Graphs
from sapwood.driver.cuda.hosts import Hosts
from sapwood.driver.cuda.kernels import Kernels
from sapwood.driver.cuda.memory import Memory
from sapwood.driver.cuda.place import Place
from sapwood.units import Addr, Size


class Work:
    """Gives work to the streams of one device."""

    def __init__(
        self,
        library: Library,
        place: Place,
        memory: Memory,
        hosts: Hosts,
        flow: Flow,
        kernels: Kernels,
        graphs: Graphs,
    ) -> None:
        self._library, self._place, self._memory = library, place, memory
        self._hosts, self._flow = hosts, flow
        self._kernels, self._graphs = kernels, graphs

    def launch(self, op: KernelOp, stream: StreamHandle) -> None:
        raw = self._flow.streams.find(stream)
        self._hosts.check()
        self._kernels.launch(op, raw)

    def copy(self, dst: Addr, src: Addr, size: Size, stream: StreamHandle) -> None:
        raw = self._flow.streams.find(stream)
        check_op(CopyOp(dst, src, size))
        self._hosts.check()
        if size:
            self._library(self._library.cu.cuMemcpyAsync, dst, src, size, raw)

    def set(self, dst: Addr, value: int, size: Size, stream: StreamHandle) -> None:
        raw = self._flow.streams.find(stream)
        check_op(SetOp(dst, value, size))
        self._hosts.check()
        if size:
            self._library(self._library.cu.cuMemsetD8Async, dst, value, size, raw)

    def call_host(self, call: Callable[[], None], stream: StreamHandle) -> None:
        raw = self._flow.streams.find(stream)
        captured = self._flow.captured(stream)
        if captured is None:
            self._hosts.launch(call, raw)
            return
        # cuLaunchHostFunc of the bindings frees what it recorded after one launch.
        graph, before = captured
        node = self._graphs.node(graph, HostOp(call), before)
        cu = self._library.cu
        flags = cu.CUstreamUpdateCaptureDependencies_flags
        only = int(flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        self._library(cu.cuStreamUpdateCaptureDependencies, raw, [node], None, 1, only)

    def upload(self, dst: Addr, data: memoryview, stream: StreamHandle) -> None:
        raw = self._flow.idle(stream, "upload on")
        if data.nbytes:
            self._memory.upload(dst, data, raw)

    def download(self, src: Addr, size: Size, stream: StreamHandle) -> bytearray:
        raw = self._flow.idle(stream, "download on")
        data = self._memory.download(src, size, raw)
        self._hosts.check()
        return data

    def end_capture(self, stream: StreamHandle) -> GraphHandle:
        return self._graphs.own(self._flow.end(stream))

    def launch_graph(self, exec_: ExecHandle, stream: StreamHandle) -> None:
        flow, graph = self._flow, self._graphs.execs.find(exec_).raw
        # Asking CUDA whether the stream is capturing would cost a fifth of a launch.
        if not flow.origins and flow.streams.is_legacy(stream):
            with self._place.current:
                self._launch(graph, flow.streams.find(stream))
        elif flow.origins or stream in flow.streams.foreign:
            with self._place.here():
                self._launch(graph, flow.idle(stream, "launch a graph on"))
        else:
            self._launch(graph, flow.streams.find(stream))

    def _launch(self, graph: Any, raw: Any) -> None:
        self._hosts.check()
        launch = self._library.cu.cuGraphLaunch
        code = launch(graph, raw)[0]
        if code:
            raise self._library.answer(launch, code)
