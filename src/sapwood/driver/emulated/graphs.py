"""Graphs of ops, as they are built by hand or by a capture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sapwood.driver.api import NodeHandle, Op
from sapwood.driver.results import invalid_value


@dataclass(frozen=True, slots=True)
class Node:
    """An op and the nodes that it comes after."""

    op: Op
    after: tuple[NodeHandle, ...]


class Graph:
    """Nodes in the order of their making, which is one in which they may run."""

    __slots__ = ("_handles", "nodes")

    def __init__(self, handles: Iterator[int]) -> None:
        self.nodes: dict[NodeHandle, Node] = {}
        self._handles = handles

    def add(self, op: Op, after: Iterable[NodeHandle]) -> NodeHandle:
        """Add a node after nodes of this graph."""
        before = tuple(dict.fromkeys(after))
        for each in before:
            if each not in self.nodes:
                raise invalid_value(
                    f"node {each} is not of this graph: depend on its own nodes only"
                )
        node = NodeHandle(next(self._handles))
        self.nodes[node] = Node(op, before)
        return node

    def surround(
        self, first: Iterable[Op], last: Iterable[Op]
    ) -> tuple[tuple[NodeHandle, ...], tuple[NodeHandle, ...]]:
        """Add nodes that come before all others, and some that come after them."""
        inner = self.nodes
        heads = {NodeHandle(next(self._handles)): Node(op, ()) for op in first}
        self.nodes = heads | {
            node: Node(made.op, made.after or tuple(heads))
            for node, made in inner.items()
        }
        followed = {before for before, _ in self.edges()}
        ends = tuple(node for node in self.nodes if node not in followed)
        return tuple(heads), tuple(self.add(op, ends) for op in last)

    def edges(self) -> tuple[tuple[NodeHandle, NodeHandle], ...]:
        """Return ``(before, after)`` pairs."""
        nodes = self.nodes.items()
        return tuple([(each, node) for node, made in nodes for each in made.after])

    def before(self, nodes: Iterable[NodeHandle]) -> set[NodeHandle]:
        """Return these nodes and all that they come after."""
        found, rest = set[NodeHandle](), list(nodes)
        while rest:
            node = rest.pop()
            if node not in found:
                found.add(node)
                rest.extend(self.nodes[node].after)
        return found
