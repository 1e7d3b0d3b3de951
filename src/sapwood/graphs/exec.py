"""A recording as the driver runs it: linked, aimed at this call's bytes, launched.

Around the recorded ops stand copies: of arguments into the range before them, and of
written arguments back after them. Aiming changes where those copies, or the ops
themselves, find an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sapwood.driver.api import (
    CopyOp,
    Driver,
    ExecHandle,
    FunctionHandle,
    GraphHandle,
    NodeHandle,
    StreamHandle,
)
from sapwood.errors import DriverError
from sapwood.graphs.recording import Recording, Relocation
from sapwood.graphs.relocate import by_op, resolve
from sapwood.units import Addr, Size

__all__ = ["Exec", "Staged", "link"]

Functions = Callable[[bytes, str], FunctionHandle]


@dataclass(frozen=True, slots=True)
class Staged:
    """A place that every replay copies to ``address`` first, and ``back`` after."""

    symbol: int
    address: Addr
    size: Size
    back: bool


class Copies(NamedTuple):
    """The nodes that copy a staged place in, and back."""

    staged: Staged
    into: NodeHandle
    back: NodeHandle | None


class Exec:
    """An instantiated graph, owned; made by `link`.

    ``aims`` counts how often it was aimed anew.
    """

    def __init__(
        self,
        driver: Driver,
        handle: ExecHandle,
        recording: Recording,
        addresses: list[Addr],
        nodes: Sequence[NodeHandle],
        copies: Sequence[Copies],
        functions: Functions,
    ) -> None:
        self.driver, self.handle, self.recording = driver, handle, recording
        self._addresses, self._nodes, self._functions = addresses, nodes, functions
        self._copies = {copy.staged.symbol: copy for copy in copies}
        self._aimed: dict[int, Addr | None] = {}
        self.aims = 0

    def aim(self, symbol: int, address: Addr) -> None:
        """Make further launches find a staged or patched place at ``address``."""
        if self._aimed.get(symbol) == address:
            return
        # Half aimed is not aimed: forgotten first, remembered when all is done.
        self._aimed[symbol] = None
        self.aims += 1
        if symbol in self._copies:
            self._aim_copies(symbol, address)
        else:
            self._patch(symbol, address)
        self._aimed[symbol] = address

    def _aim_copies(self, symbol: int, address: Addr) -> None:
        staged, into, back = self._copies[symbol]
        copy = CopyOp(staged.address, address, staged.size)
        self.driver.set_op(self.handle, into, copy)
        if back is not None:
            copy = CopyOp(address, staged.address, staged.size)
            self.driver.set_op(self.handle, back, copy)

    def _patch(self, symbol: int, address: Addr) -> None:
        self._addresses[symbol] = address
        relocations = by_op(self.recording.relocations)
        for i, changed in relocations.items():
            if any(r.symbol == symbol for r in changed):
                op = self.recording.ops[i]
                resolved = resolve(op, changed, self._addresses, self._functions)
                self.driver.set_op(self.handle, self._nodes[i], resolved)

    def launch(self, stream: StreamHandle) -> None:
        """Run all ops, in stream order."""
        self.driver.launch_graph(self.handle, stream)

    def close(self) -> None:
        """Give the instantiated graph back."""
        self.driver.destroy_exec(self.handle)


def link(
    driver: Driver,
    recording: Recording,
    addresses: Sequence[Addr],
    staged: Sequence[Staged],
    functions: Functions,
) -> Exec:
    """Instantiate a recording with its symbols at ``addresses``.

    Staged places are copied from there, and the ops find the copies.
    """
    values = list(addresses)
    sources = {place.symbol: addresses[place.symbol] for place in staged}
    for place in staged:
        values[place.symbol] = place.address
    graph = driver.create_graph()
    try:
        nodes, copies = _build(
            driver, graph, recording, values, staged, sources, functions
        )
        handle = driver.instantiate(graph)
    except DriverError:
        driver.destroy_graph(graph)
        raise
    try:
        driver.destroy_graph(graph)
    except DriverError:
        driver.destroy_exec(handle)
        raise
    return Exec(driver, handle, recording, values, nodes, copies, functions)


def _build(
    driver: Driver,
    graph: GraphHandle,
    recording: Recording,
    addresses: Sequence[Addr],
    staged: Sequence[Staged],
    sources: Mapping[int, Addr],
    functions: Functions,
) -> tuple[list[NodeHandle], list[Copies]]:
    into = [
        driver.add_node(graph, CopyOp(place.address, sources[place.symbol], place.size))
        for place in staged
    ]
    before: dict[int, list[int]] = {}
    for first, second in recording.edges:
        before.setdefault(second, []).append(first)
    relocations = by_op(recording.relocations)
    nodes: list[NodeHandle] = []
    for i, op in enumerate(recording.ops):
        changed: Sequence[Relocation] = relocations.get(i, ())
        after = [nodes[j] for j in before.get(i, ())] or into
        resolved = resolve(op, changed, addresses, functions)
        nodes.append(driver.add_node(graph, resolved, tuple(after)))
    followed = {first for first, _ in recording.edges}
    last = tuple(n for i, n in enumerate(nodes) if i not in followed) or tuple(into)
    copies: list[Copies] = []
    for place, node in zip(staged, into, strict=True):
        back = None
        if place.back:
            copy = CopyOp(sources[place.symbol], place.address, place.size)
            back = driver.add_node(graph, copy, last)
        copies.append(Copies(place, node, back))
    return nodes, copies
