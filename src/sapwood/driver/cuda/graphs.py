"""Graphs, their nodes, and what is made of them to be launched.

A graph that was given back stays while something launchable was made of it: CUDA
names the ops of that by the nodes of the graph.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

from sapwood.driver.api import (
    CopiesOp,
    CopyOp,
    EmptyOp,
    ExecHandle,
    GraphHandle,
    HostOp,
    KernelOp,
    NodeHandle,
    Op,
    SetOp,
)
from sapwood.driver.check import check_op
from sapwood.driver.cuda.bindings import Library, address_of, unsupported
from sapwood.driver.cuda.copies import Copies, copies_of, room_for
from sapwood.driver.cuda.hosts import Hosts
from sapwood.driver.cuda.kernels import Kernels, Packed
from sapwood.driver.cuda.ops import (
    copy_of,
    kernel_of,
    kernel_params,
    parameter_bytes,
    set_cluster,
    set_of,
    set_params,
)
from sapwood.driver.cuda.place import Place
from sapwood.driver.handles import Table
from sapwood.driver.native import Native, NativeCopies
from sapwood.driver.results import Result, invalid_value
from sapwood.units import Addr


def _ends(library: Library, node: Any) -> Iterator[Addr]:
    """Yield where a copy begins to read and to write, but for arrays."""
    params = library(library.cu.cuGraphMemcpyNodeGetParams, node)
    src, dst = int(params.srcDevice), int(params.dstDevice)
    yield Addr(src + params.srcY * params.srcPitch + params.srcXInBytes)
    yield Addr(dst + params.dstY * params.dstPitch + params.dstXInBytes)


@dataclass(frozen=True, slots=True)
class Launch:
    """What one node is set to: its shape, its words, and the parameters of CUDA's.

    The shape of copies is their sizes; ``column`` packs as many addresses. Those that
    are copied from begin at ``srcs``.
    """

    shape: tuple[Any, ...]
    packed: Packed
    params: Any
    column: struct.Struct
    srcs: int

    @classmethod
    def of(
        cls, op: KernelOp | CopyOp | CopiesOp, packed: Packed, params: Any
    ) -> Launch:
        """Return what a node is that was set to an op."""
        number = len(op.sizes) if isinstance(op, CopiesOp) else 1
        column = struct.Struct(f"<{number}Q")
        return cls(_shape_of(op), packed, params, column, 8 * room_for(number))

    def write(self, op: KernelOp | CopyOp | CopiesOp) -> None:
        """Write the words of an op of this shape."""
        pack_into, block = self.column.pack_into, self.packed.block
        match op:
            case CopiesOp():
                pack_into(block, 0, *op.dsts)
                pack_into(block, self.srcs, *op.srcs)
            case CopyOp():
                pack_into(block, 0, op.dst)
                pack_into(block, self.srcs, op.src)
            case KernelOp():
                self.packed.write(op.params)

    def words(self) -> tuple[int, int, int]:
        """Return where the words of copies lie: to, from, and how many of each."""
        base = self.packed.base
        return base, base + self.srcs, len(self.shape)


def _shape_of(op: KernelOp | CopyOp | CopiesOp) -> tuple[Any, ...]:
    """Return all of an op but its words."""
    match op:
        case CopiesOp():
            return op.sizes
        case CopyOp():
            return (op.size,)
        case KernelOp():
            return op.function, op.grid, op.block, op.shared, op.cluster


@dataclass(slots=True)
class _Graph:
    raw: Any
    nodes: dict[NodeHandle, Any] = field(default_factory=dict)
    kinds: dict[NodeHandle, type[Op]] = field(default_factory=dict)
    users: int = 1  # its handle, and each exec
    adopted: bool = False  # then its owner destroys it


@dataclass(slots=True)
class _Exec:
    """An exec; ``launches`` are the parameters that its nodes were last set to."""

    raw: Any
    graph: _Graph
    calls: list[int] = field(default_factory=list)
    launches: dict[NodeHandle, Launch] = field(default_factory=dict)


class Graphs:
    """The graphs of one device."""

    def __init__(
        self, library: Library, place: Place, kernels: Kernels, hosts: Hosts
    ) -> None:
        self._library, self._place = library, place
        self._kernels, self._hosts = kernels, hosts
        self._copies = Copies(kernels)
        self.graphs = Table[GraphHandle, _Graph]("graph")
        self.execs = Table[ExecHandle, _Exec]("exec")
        self._graph_of = Table[NodeHandle, _Graph]("node")
        of = library.cu.CUgraphNodeType
        self._kinds: dict[Any, type[Op]] = {
            of.CU_GRAPH_NODE_TYPE_KERNEL: KernelOp,
            of.CU_GRAPH_NODE_TYPE_MEMCPY: CopyOp,
            of.CU_GRAPH_NODE_TYPE_MEMSET: SetOp,
            of.CU_GRAPH_NODE_TYPE_HOST: HostOp,
            of.CU_GRAPH_NODE_TYPE_EMPTY: EmptyOp,
        }

    # Graphs.

    def create_graph(self) -> GraphHandle:
        """Return a new graph."""
        return self.own(self._library(self._library.cu.cuGraphCreate, 0))

    def own(self, raw: Any) -> GraphHandle:
        """Return the handle of a graph that now belongs here."""
        return self.graphs.put(GraphHandle(int(raw)), _Graph(raw))

    def adopt_graph(self, raw: int) -> GraphHandle:
        """Return the handle of a graph that stays somebody else's."""
        if raw in self.graphs.values:
            raise Result.INVALID_HANDLE.refusal(
                f"graph {raw:#x} has a handle already: adopt a graph once"
            )
        graph = _Graph(self._library.cu.CUgraph(raw), adopted=True)
        return self.graphs.put(GraphHandle(raw), graph)

    def destroy_graph(self, graph: GraphHandle) -> None:
        """Give a graph back; its nodes end with it."""
        found = self.graphs.take(graph)
        for node in found.nodes:
            del self._graph_of.values[node]
        self._leave(found)

    def add_node(
        self, graph: GraphHandle, op: Op, after: tuple[NodeHandle, ...] = ()
    ) -> NodeHandle:
        """Add a node that could run."""
        found = self.graphs.find(graph)
        before = []
        for each in dict.fromkeys(after):
            if each not in found.nodes:
                raise invalid_value(
                    f"node {each:#x} is not of this graph: depend on its own nodes"
                )
            before.append(found.nodes[each])
        check_op(op)
        node = self._know(found, self.node(found.raw, op, before))
        if isinstance(op, CopiesOp) or (isinstance(op, CopyOp) and op.size):
            found.kinds[node] = type(op)
        return node

    def surround(
        self, graph: GraphHandle, first: tuple[Op, ...], last: tuple[Op, ...]
    ) -> tuple[tuple[NodeHandle, ...], tuple[NodeHandle, ...]]:
        """Add nodes before and behind all others, several by way of a join."""
        found, library, cu = self.graphs.find(graph), self._library, self._library.cu
        roots = self._roots(found.raw) if first else []
        ends = self._ends(graph) if last else ()
        heads = tuple(self.add_node(graph, op, ()) for op in first)
        if heads and roots:
            one = len(heads) == 1
            join = heads[0] if one else self.add_node(graph, EmptyOp(), heads)
            many, add = [found.nodes[join]] * len(roots), cu.cuGraphAddDependencies
            library(add, found.raw, many, roots, None, len(roots))
        if last and len(ends) > 1:
            ends = (self.add_node(graph, EmptyOp(), ends),)
        return heads, tuple(self.add_node(graph, op, ends or heads) for op in last)

    def _roots(self, raw: Any) -> list[Any]:
        """Return the nodes that nothing comes before, as CUDA knows them."""
        library, cu = self._library, self._library.cu
        _, number = library(cu.cuGraphGetRootNodes, raw, 0)
        roots, _ = library(cu.cuGraphGetRootNodes, raw, number)
        return list(roots)

    def _ends(self, graph: GraphHandle) -> tuple[NodeHandle, ...]:
        """Return the nodes that come before no other."""
        edges = self._edges(self.graphs.find(graph))
        followed = {before for before, _ in edges}
        return tuple(node for node in self.nodes(graph) if node not in followed)

    def nodes(self, graph: GraphHandle) -> tuple[NodeHandle, ...]:
        """Return the nodes, each after all that it comes after."""
        found = self.graphs.find(graph)
        library, cu = self._library, self._library.cu
        _, number = library(cu.cuGraphGetNodes, found.raw, 0)
        raws, _ = library(cu.cuGraphGetNodes, found.raw, number)
        nodes = [self._know(found, each) for each in raws]
        place = {node: index for index, node in enumerate(nodes)}
        edges = self._edges(found)
        if all(place[before] < place[after] for before, after in edges):
            return tuple(nodes)
        order = TopologicalSorter[NodeHandle](dict.fromkeys(nodes, ()))
        for before, after in edges:
            order.add(after, before)
        return tuple(order.static_order())

    def words(self, graph: GraphHandle) -> frozenset[Addr] | None:
        """Return what may be an address in any node; None where one hides it."""
        library, cu = self._library, self._library.cu
        of, found = cu.CUgraphNodeType, set[Addr]()
        without = {
            of.CU_GRAPH_NODE_TYPE_EMPTY,
            of.CU_GRAPH_NODE_TYPE_HOST,
            of.CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            of.CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        }
        for node in map(self.graphs.find(graph).nodes.__getitem__, self.nodes(graph)):
            kind = library(cu.cuGraphNodeGetType, node)
            if kind == of.CU_GRAPH_NODE_TYPE_KERNEL:
                params = library(cu.cuGraphKernelNodeGetParams, node)
                function = self._kernels.foreign(params.func)
                words = function.words(parameter_bytes(params, function))
                found.update(Addr(word) for _, word in words)
            elif kind == of.CU_GRAPH_NODE_TYPE_MEMCPY:
                found.update(_ends(library, node))
            elif kind == of.CU_GRAPH_NODE_TYPE_MEMSET:
                params = library(cu.cuGraphMemsetNodeGetParams, node)
                found.add(Addr(int(params.dst)))
            elif kind not in without:
                return None
        return frozenset(found)

    def edges(self, graph: GraphHandle) -> tuple[tuple[NodeHandle, NodeHandle], ...]:
        """Return ``(before, after)`` pairs, in the order of the nodes."""
        place = {node: index for index, node in enumerate(self.nodes(graph))}
        edges = self._edges(self.graphs.find(graph))
        return tuple(sorted(edges, key=lambda edge: (place[edge[1]], place[edge[0]])))

    def node_op(self, node: NodeHandle) -> Op:
        """Return what a node of a live graph does."""
        graph, library = self._graph_of.find(node), self._library
        raw, kind = graph.nodes[node], self._kind(graph, node)
        if kind is KernelOp:
            return kernel_of(library, self._kernels, raw)
        if kind is CopyOp:
            return self._copy_of(raw)
        if kind is CopiesOp:
            return copies_of(kernel_of(library, self._kernels, raw))
        if kind is SetOp:
            return set_of(library, raw)
        if kind is HostOp:
            params = library(library.cu.cuGraphHostNodeGetParams, raw)
            return HostOp(self._hosts.call_of(params))
        return EmptyOp()

    def _copy_of(self, raw: Any) -> CopyOp:
        library, of = self._library, self._library.cu.CUgraphNodeType
        if library(library.cu.cuGraphNodeGetType, raw) == of.CU_GRAPH_NODE_TYPE_MEMCPY:
            return copy_of(library, raw)
        found = copies_of(kernel_of(library, self._kernels, raw))
        return CopyOp(found.dsts[0], found.srcs[0], found.sizes[0])

    def _edges(self, graph: _Graph) -> list[tuple[NodeHandle, NodeHandle]]:
        library, cu = self._library, self._library.cu
        *_, number = library(cu.cuGraphGetEdges, graph.raw, 0)
        # A kernel that may start before the one it depends on has ended may as well
        # start behind it: so programmatic edges, too, are only edges.
        befores, afters, _, _ = library(cu.cuGraphGetEdges, graph.raw, number)
        pairs = zip(map(int, befores), map(int, afters), strict=True)
        return [(NodeHandle(before), NodeHandle(after)) for before, after in pairs]

    def _kind(self, graph: _Graph, node: NodeHandle) -> type[Op]:
        found = graph.kinds.get(node)
        if found is None:
            raw = graph.nodes[node]
            kind = self._library(self._library.cu.cuGraphNodeGetType, raw)
            if kind not in self._kinds:
                raise unsupported(
                    f"a node of type {kind.name} was captured: only kernels, copies, "
                    "sets and host functions can be recorded"
                )
            found = graph.kinds[node] = self._kinds[kind]
        return found

    def _know(self, graph: _Graph, raw: Any) -> NodeHandle:
        node = NodeHandle(int(raw))
        if node not in graph.nodes:
            graph.nodes[node] = raw
            self._graph_of.put(node, graph)
        return node

    def node(self, graph: Any, op: Op, before: list[Any]) -> Any:
        """Return a new node of a graph, as CUDA knows it."""
        library, cu = self._library, self._library.cu
        number, context = len(before), self._place.context
        match op:
            case KernelOp():
                function, packed = self._kernels.prepared(op)
                params = kernel_params(cu, op, function, packed)
                add = cu.cuGraphAddKernelNode
                node = library(add, graph, before, number, params)
                set_cluster(library, node, op)
                return node
            case EmptyOp() | CopyOp(size=0) | SetOp(size=0):  # or there are no bytes
                return library(cu.cuGraphAddEmptyNode, graph, before, number)
            case CopiesOp() | CopyOp():
                return self.node(graph, self._copies.kernel(op), before)
            case SetOp():
                params = set_params(cu, op)
                add = cu.cuGraphAddMemsetNode
                return library(add, graph, before, number, params, context)
            case HostOp(call):
                params = self._hosts.params_in(graph, call)
                return library(cu.cuGraphAddHostNode, graph, before, number, params)

    def _leave(self, graph: _Graph) -> None:
        graph.users -= 1
        if not graph.users and not graph.adopted:
            self._library(self._library.cu.cuGraphDestroy, graph.raw)

    # What is launched.

    def instantiate(self, graph: GraphHandle) -> ExecHandle:
        """Make a graph launchable."""
        found = self.graphs.find(graph)
        raw = self._library(self._library.cu.cuGraphInstantiate, found.raw, 0)
        found.users += 1
        return self.execs.put(ExecHandle(int(raw)), _Exec(raw, found))

    def adopt_exec(self, graph: GraphHandle, raw: int) -> ExecHandle:
        """Return the handle of what the owner of an adopted graph has made of it."""
        found = self.graphs.find(graph)
        if not found.adopted or raw in self.execs.values:
            raise Result.INVALID_HANDLE.refusal(
                f"exec {raw:#x} is one of this library: use the handle that it has"
            )
        found.users += 1
        exec_ = _Exec(self._library.cu.CUgraphExec(raw), found)
        return self.execs.put(ExecHandle(raw), exec_)

    def destroy_exec(self, exec_: ExecHandle) -> None:
        """Give an exec back; launches already made are not affected."""
        found = self.execs.take(exec_)
        self._hosts.retire(found.calls)
        try:
            if not found.graph.adopted:
                self._library(self._library.cu.cuGraphExecDestroy, found.raw)
        finally:
            self._leave(found.graph)

    def set_op(self, exec_: ExecHandle, node: NodeHandle, op: Op) -> None:
        """Let further launches run another op of the same kind."""
        with self._place.current:  # CUDA would crash where a thread has none
            found = self.execs.find(exec_)
            raw = self._node_of(found, node, type(op))
            check_op(op)
            if isinstance(op, KernelOp | CopyOp | CopiesOp):
                self._relaunch(found, node, op)
            else:
                self._set(found, raw, op)

    def _node_of(self, exec_: _Exec, node: NodeHandle, kind: type[Op]) -> Any:
        graph = exec_.graph
        if node not in graph.nodes or self._kind(graph, node) is not kind:
            raise invalid_value(
                f"node {node:#x} is no {kind.__name__} of exec {int(exec_.raw):#x}: an "
                "exec keeps the nodes and kinds of its graph"
            )
        return graph.nodes[node]

    def _relaunch(
        self, exec_: _Exec, node: NodeHandle, op: KernelOp | CopyOp | CopiesOp
    ) -> None:
        """Change a kernel's parameters; mostly it is but their bytes that differ."""
        known = exec_.launches.get(node)
        if known is None or known.shape != _shape_of(op):
            known = self._launch(op)
        change = self._library.cu.cuGraphExecKernelNodeSetParams
        block = known.packed.block
        before: bytes = block.raw
        try:
            known.write(op)
            self._library(change, exec_.raw, exec_.graph.nodes[node], known.params)
        except BaseException:
            block.raw = before  # C reads in the words what the exec holds
            raise
        exec_.launches[node] = known

    def _launch(self, op: KernelOp | CopyOp | CopiesOp) -> Launch:
        kernel = op if isinstance(op, KernelOp) else self._copies.kernel(op)
        function, packed = self._kernels.prepared(kernel)
        params = kernel_params(self._library.cu, kernel, function, packed)
        return Launch.of(op, packed, params)

    def native(self, exec_: ExecHandle, nodes: Sequence[NodeHandle]) -> Native:
        """Return an exec as C knows it, with some of its nodes of copies."""
        library, found = self._library, self.execs.find(exec_)
        for node in nodes:
            raw = self._node_of(found, node, CopiesOp)
            if node not in found.launches:  # then it does what its graph says
                kernel = kernel_of(library, self._kernels, raw)
                self._relaunch(found, node, copies_of(kernel))
        launches = [found.launches[node] for node in nodes]
        return Native(
            address_of(library, "cuGraphLaunch"),
            address_of(library, "cuGraphExecKernelNodeSetParams"),
            address_of(library, "cuCtxGetCurrent"),
            exec_,
            int(self._place.context),
            tuple(
                NativeCopies(node, launch.params.getPtr(), *launch.words())
                for node, launch in zip(nodes, launches, strict=True)
            ),
            launches,
        )

    def _set(self, exec_: _Exec, node: Any, op: Op) -> None:
        library, cu, context = self._library, self._library.cu, self._place.context
        match op:
            case SetOp():
                params = set_params(cu, op)
                change = cu.cuGraphExecMemsetNodeSetParams
                library(change, exec_.raw, node, params, context)
            case HostOp(call):
                params, token = self._hosts.params_until_retired(call)
                exec_.calls.append(token)
                library(cu.cuGraphExecHostNodeSetParams, exec_.raw, node, params)
