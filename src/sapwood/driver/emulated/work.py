"""What a device can be told to do: modules, functions, graphs, executable graphs."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from sapwood.driver.api import (
    CopiesOp,
    CopyOp,
    EmptyOp,
    ExecHandle,
    FunctionHandle,
    GraphHandle,
    HostOp,
    KernelOp,
    ModuleHandle,
    NodeHandle,
    Op,
    Pointer,
    SetOp,
    StreamHandle,
)
from sapwood.driver.check import check_op
from sapwood.driver.emulated.flow import Flow
from sapwood.driver.emulated.graphs import Graph
from sapwood.driver.emulated.kernels import Kernel, Module, find_module
from sapwood.driver.emulated.memory import Memory
from sapwood.driver.handles import Counted
from sapwood.driver.results import Refusal, Result, invalid_value
from sapwood.units import Addr, Size

_UNVERIFIED = -1
_ROOM = 50  # frames


Span = tuple[int, int, bool]
"""What is touched, and whether it is written: ``(lo, hi, writes)``."""


@dataclass(frozen=True, slots=True)
class Step:
    """One bound op: its call, what it touches, its module."""

    call: Callable[[], object]
    spans: tuple[Span, ...] = ()
    module: Module | None = None

    def verify(self, memory: Memory) -> None:
        """Refuse what may not run now."""
        if self.module is not None and not self.module.loaded:
            raise Result.INVALID_HANDLE.refusal(
                "the kernel's module was unloaded: keep modules while work uses them"
            )
        for lo, hi, writes in self.spans:
            memory.check(lo, hi, writes)


class Program:
    """Steps and an order to run them in; calling it runs all."""

    __slots__ = ("calls", "memory", "order", "steps", "verified")

    def __init__(
        self, memory: Memory, steps: Sequence[Step], order: Sequence[int]
    ) -> None:
        self.memory, self.steps, self.order = memory, steps, order
        self.calls = tuple([steps[index].call for index in order])
        self.verified = _UNVERIFIED

    def __call__(self) -> None:
        if self.verified != self.memory.version:
            try:
                self._verify()
            except RecursionError:
                # A device has no stack of Python's, which a caller may have filled.
                limit = sys.getrecursionlimit()
                sys.setrecursionlimit(limit + _ROOM)
                try:
                    self._verify()
                finally:
                    sys.setrecursionlimit(limit)
        for call in self.calls:
            call()

    def _verify(self) -> None:
        self.verified = _UNVERIFIED
        for step in self.steps:
            step.verify(self.memory)
        self.verified = self.memory.version

    def ordered(self, order: Sequence[int]) -> Program:
        """Return the same steps in another order."""
        program = Program(self.memory, self.steps, order)
        program.verified = self.verified
        return program

    def replaced(self, index: int, step: Step) -> Program:
        """Return the program with another step at ``index``."""
        steps = list(self.steps)
        steps[index] = step
        program = Program(self.memory, steps, self.order)
        if self.verified == self.memory.version:
            try:
                step.verify(self.memory)
            except Refusal:
                return program  # a later launch says so, if it is still true then
            program.verified = self.verified
        return program


@dataclass(slots=True)
class _Exec:
    """Places of nodes in the program, the edges by place, and the kinds of op."""

    places: dict[NodeHandle, int]
    before: tuple[tuple[int, ...], ...]
    kinds: tuple[type[Op], ...]
    program: Program


class Work:
    """The modules and graphs of one device."""

    def __init__(
        self,
        memory: Memory,
        flow: Flow,
        call_host: Callable[[Callable[[], None]], None],
        handles: Iterator[int],
    ) -> None:
        self._memory, self._flow = memory, flow
        self._call_host, self._handles = call_host, handles
        self.modules = Counted[ModuleHandle, Module]("module", handles)
        self.functions = Counted[FunctionHandle, tuple[Kernel, Module]](
            "function", handles
        )
        self.graphs = Counted[GraphHandle, Graph]("graph", handles)
        self.execs = Counted[ExecHandle, _Exec]("exec", handles)

    def load_module(self, image: bytes) -> ModuleHandle:
        """Load a registered image."""
        return self.modules.add(Module(find_module(image)))

    def unload_module(self, module: ModuleHandle) -> None:
        """Unload a module; its kernels may not run any more."""
        unloaded = self.modules.take(module)
        unloaded.loaded = False
        functions = self.functions.values
        for handle in [each for each in functions if functions[each][1] is unloaded]:
            del functions[handle]
        self._memory.version += 1  # programs with its kernels must be verified anew

    def find_function(self, module: ModuleHandle, name: str) -> FunctionHandle:
        """Return a kernel of a module."""
        found = self.modules.find(module)
        kernel = found.kernels.get(name)
        if kernel is None:
            raise Result.NOT_FOUND.refusal(
                f"module {module} has no kernel {name!r}: it has "
                f"{', '.join(sorted(found.kernels)) or 'none'}"
            )
        return self.functions.add((kernel, found))

    def pointers(
        self, function: FunctionHandle, params: bytes
    ) -> tuple[Pointer, ...] | None:
        """Return all addresses in parameters."""
        kernel, _ = self.functions.find(function)
        return kernel.taken(kernel.pointers, params)

    # What streams are given.

    def launch(self, op: KernelOp, stream: StreamHandle) -> None:
        self._submit(op, stream)

    def copy(self, dst: Addr, src: Addr, size: Size, stream: StreamHandle) -> None:
        self._submit(CopyOp(dst, src, size), stream)

    def set(self, dst: Addr, value: int, size: Size, stream: StreamHandle) -> None:
        self._submit(SetOp(dst, value, size), stream)

    def call_host(self, call: Callable[[], None], stream: StreamHandle) -> None:
        self._submit(HostOp(call), stream)

    def upload(self, dst: Addr, data: memoryview, stream: StreamHandle) -> None:
        """Write bytes, of which it makes its own."""
        read = data.tobytes()
        call = partial(ctypes.memmove, dst, read, len(read))
        step = Step(call, ((dst, dst + len(read), True),))
        self._flow.run(stream, "upload on", self._program(step))

    def download(self, src: Addr, size: Size, stream: StreamHandle) -> bytearray:
        """Read bytes, and wait for them."""
        data = bytearray(size)
        pointer = ctypes.addressof(ctypes.c_char.from_buffer(data)) if data else 0
        call = partial(ctypes.memmove, pointer, src, size)
        step = Step(call, ((src, src + size, False),))
        self._flow.run(stream, "download on", self._program(step))
        self._flow.synchronize_stream(stream)
        return data

    def end_capture(self, stream: StreamHandle) -> GraphHandle:
        return self.graphs.add(self._flow.end(stream))

    def launch_graph(self, exec_: ExecHandle, stream: StreamHandle) -> None:
        found = self.execs.find(exec_)
        program, order = found.program, self._flow.schedule
        if order.reorders:
            program = program.ordered(order.order(found.before))
        self._flow.run(stream, "launch a graph on", program)

    def _submit(self, op: Op, stream: StreamHandle) -> None:
        self._flow.submit(stream, op, self._program(self._bind(op)))

    def _program(self, step: Step) -> Program:
        return Program(self._memory, (step,), (0,))

    # Graphs.

    def create_graph(self) -> GraphHandle:
        return self.graphs.add(Graph(self._handles))

    def destroy_graph(self, graph: GraphHandle) -> None:
        self.graphs.take(graph)

    def nodes(self, graph: GraphHandle) -> tuple[NodeHandle, ...]:
        return tuple(self.graphs.find(graph).nodes)

    def edges(self, graph: GraphHandle) -> tuple[tuple[NodeHandle, NodeHandle], ...]:
        return self.graphs.find(graph).edges()

    def node_op(self, node: NodeHandle) -> Op:
        """Return what a node of a live graph does."""
        for graph in self.graphs.values.values():
            if node in graph.nodes:
                return graph.nodes[node].op
        raise Result.INVALID_HANDLE.refusal(
            f"node {node} does not exist, or its graph was destroyed: ask before"
        )

    def add_node(
        self, graph: GraphHandle, op: Op, after: tuple[NodeHandle, ...] = ()
    ) -> NodeHandle:
        """Add a node that could run."""
        found = self.graphs.find(graph)
        self._bind(op)
        return found.add(op, after)

    def words(self, graph: GraphHandle) -> frozenset[Addr]:
        """Return where everything begins that any node uses."""
        nodes = self.graphs.find(graph).nodes.values()
        spans = (span for node in nodes for span in self._bind(node.op).spans)
        return frozenset(Addr(lo) for lo, _, _ in spans)

    def surround(
        self, graph: GraphHandle, first: tuple[Op, ...], last: tuple[Op, ...]
    ) -> tuple[tuple[NodeHandle, ...], tuple[NodeHandle, ...]]:
        """Add nodes before and behind all others."""
        found = self.graphs.find(graph)
        for op in (*first, *last):
            self._bind(op)
        return found.surround(first, last)

    def instantiate(self, graph: GraphHandle) -> ExecHandle:
        """Bind all ops of a graph, so that launching decodes nothing."""
        nodes = self.graphs.find(graph).nodes
        places = {node: place for place, node in enumerate(nodes)}
        before = tuple(
            [tuple([places[each] for each in node.after]) for node in nodes.values()]
        )
        steps = [self._bind(node.op) for node in nodes.values()]
        program = Program(self._memory, steps, self._flow.schedule.order(before))
        kinds = tuple([type(node.op) for node in nodes.values()])
        return self.execs.add(_Exec(places, before, kinds, program))

    def set_op(self, exec_: ExecHandle, node: NodeHandle, op: Op) -> None:
        """Let further launches run another op of the same kind."""
        found = self.execs.find(exec_)
        place = found.places.get(node)
        if place is None or found.kinds[place] is not type(op):
            raise invalid_value(
                f"node {node} is no {type(op).__name__} of exec {exec_}: an exec keeps "
                "the nodes and kinds of its graph"
            )
        found.program = found.program.replaced(place, self._bind(op))

    def destroy_exec(self, exec_: ExecHandle) -> None:
        self.execs.take(exec_)

    def adopt_graph(self, raw: int) -> GraphHandle:
        raise _nobody_else(raw)

    def adopt_exec(self, graph: GraphHandle, raw: int) -> ExecHandle:
        self.graphs.find(graph)
        raise _nobody_else(raw)

    def _bind(self, op: Op) -> Step:
        check_op(op)
        match op:
            case KernelOp(function, params):
                kernel, module = self.functions.find(function)
                pointers = kernel.taken(kernel.pointers, params)
                spans = tuple([(each.lo, each.hi, each.writes) for each in pointers])
                return Step(kernel.taken(kernel.bind, params), spans, module)
            case CopyOp(dst, src, size):
                call = partial(ctypes.memmove, dst, src, size)
                return Step(call, _copied(dst, src, size))
            case CopiesOp(dsts, srcs, sizes):
                # In the order that nobody would think of: the last first.
                copies = list(zip(dsts, srcs, sizes, strict=True))[::-1]
                calls = [partial(ctypes.memmove, *copy) for copy in copies]
                touched = tuple(span for copy in copies for span in _copied(*copy))
                return Step(lambda: [call() for call in calls], touched)
            case SetOp(dst, value, size):
                set_all = partial(ctypes.memset, dst, value, size)
                return Step(set_all, ((dst, dst + size, True),))
            case HostOp(call_host):
                return Step(partial(self._call_host, call_host))
            case EmptyOp():
                return Step(bool)


def _copied(dst: Addr, src: Addr, size: Size) -> tuple[Span, Span]:
    return (src, src + size, False), (dst, dst + size, True)


def _nobody_else(raw: int) -> Refusal:
    return Result.INVALID_HANDLE.refusal(
        f"{raw:#x} is nothing of this device: no other library captures on it"
    )
