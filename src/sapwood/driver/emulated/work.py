"""What a device can be told to do: modules, functions, graphs, executable graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from sapwood.driver.api import (
    ExecHandle,
    FunctionHandle,
    GraphHandle,
    HostOp,
    KernelOp,
    ModuleHandle,
    NodeHandle,
    Op,
)
from sapwood.driver.emulated.graphs import Graph, Node
from sapwood.driver.emulated.handles import Counted
from sapwood.driver.emulated.kernels import Kernel, Module, find_module
from sapwood.driver.emulated.memory import Memory
from sapwood.driver.emulated.programs import Program, Step, bind_kernel, bind_plain
from sapwood.driver.emulated.schedules import Schedule
from sapwood.driver.results import Refusal, Result
from sapwood.units import Addr

__all__ = ["Work"]


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
        schedule: Schedule,
        call_host: Callable[[Callable[[], None]], None],
        handles: Iterator[int],
    ) -> None:
        self._memory, self._schedule = memory, schedule
        self._call_host, self._handles = call_host, handles
        self.modules = Counted[ModuleHandle, Module]("module", ModuleHandle, handles)
        self.functions = Counted[FunctionHandle, tuple[Kernel, Module]](
            "function", FunctionHandle, handles
        )
        self.graphs = Counted[GraphHandle, Graph]("graph", GraphHandle, handles)
        self.execs = Counted[ExecHandle, _Exec]("exec", ExecHandle, handles)

    def load(self, image: bytes) -> ModuleHandle:
        """Load a registered image."""
        return self.modules.add(Module(find_module(image)))

    def unload(self, module: ModuleHandle) -> None:
        """Unload a module; its kernels may not run any more."""
        unloaded = self.modules.take(module)
        unloaded.loaded = False
        functions = self.functions.values
        for handle in [each for each in functions if functions[each][1] is unloaded]:
            del functions[handle]
        self._memory.version += 1  # programs with its kernels must be verified anew

    def function(self, module: ModuleHandle, name: str) -> FunctionHandle:
        """Return a kernel of a module."""
        found = self.modules.find(module)
        kernel = found.kernels.get(name)
        if kernel is None:
            raise Refusal(
                Result.NOT_FOUND,
                f"module {module} has no kernel {name!r}: it has "
                f"{', '.join(sorted(found.kernels)) or 'none'}",
            )
        return self.functions.add((kernel, found))

    def single(self, op: Op) -> Program:
        """Return a program of one op."""
        return Program(self._memory, (self._bind(op),), (0,))

    def upload(self, dst: int, data: bytes) -> Program:
        """Return a program that writes bytes of its own."""
        call = partial(ctypes.memmove, dst, data, len(data))
        step = Step(call, ((dst, dst + len(data), True),))
        return Program(self._memory, (step,), (0,))

    def download(self, src: int, data: bytearray) -> Program:
        """Return a program that fills ``data``, which must live until it has run."""
        pointer = ctypes.addressof(ctypes.c_char.from_buffer(data)) if data else 0
        call = partial(ctypes.memmove, pointer, src, len(data))
        step = Step(call, ((src, src + len(data), False),))
        return Program(self._memory, (step,), (0,))

    def node(self, node: NodeHandle) -> Node:
        """Return a node of a live graph."""
        for graph in self.graphs.values.values():
            if node in graph.nodes:
                return graph.nodes[node]
        raise Refusal(
            Result.INVALID_HANDLE,
            f"node {node} does not exist, or its graph was destroyed: ask before",
        )

    def add_node(
        self, graph: GraphHandle, op: Op, after: tuple[NodeHandle, ...]
    ) -> NodeHandle:
        """Add a node that could run."""
        found = self.graphs.find(graph)
        self._bind(op)
        return found.add(op, after)

    def words(self, graph: GraphHandle) -> frozenset[Addr]:
        """Return where everything begins that any node uses."""
        nodes = self.graphs.find(graph).nodes.values()
        return frozenset(
            Addr(lo) for node in nodes for lo, _, _ in self._bind(node.op).spans
        )

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
        program = Program(self._memory, steps, self._schedule.order(before))
        kinds = tuple([type(node.op) for node in nodes.values()])
        return self.execs.add(_Exec(places, before, kinds, program))

    def set_op(self, exec_: ExecHandle, node: NodeHandle, op: Op) -> None:
        """Let further launches run another op of the same kind."""
        found = self.execs.find(exec_)
        place = found.places.get(node)
        if place is None or found.kinds[place] is not type(op):
            raise Refusal(
                Result.INVALID_VALUE,
                f"node {node} is no {type(op).__name__} of exec {exec_}: an exec keeps "
                "the nodes and kinds of its graph",
            )
        found.program = found.program.replaced(place, self._bind(op))

    def program(self, exec_: ExecHandle) -> Program:
        """Return what one launch of an executable graph runs."""
        found = self.execs.find(exec_)
        if self._schedule.reorders:
            return found.program.ordered(self._schedule.order(found.before))
        return found.program

    def _bind(self, op: Op) -> Step:
        match op:
            case KernelOp():
                return bind_kernel(op, *self.functions.find(op.function))
            case HostOp():
                return Step(partial(self._call_host, op.call))
            case _:
                return bind_plain(op)
