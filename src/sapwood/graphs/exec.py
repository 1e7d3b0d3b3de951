"""A graph as the driver runs it: instantiated, aimed at this call's bytes, launched.

Around what was captured stand copies: of arguments into the range before them, and of
written arguments back after them. Aiming says where those copies find an argument; the
next launch tells the driver, node by node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from sapwood.driver.api import (
    MOST_COPIES,
    CopiesOp,
    Driver,
    ExecHandle,
    GraphHandle,
    NodeHandle,
    StreamHandle,
)
from sapwood.driver.native import Lender, Native
from sapwood.errors import DriverError
from sapwood.graphs.recording import Recording, Relocation
from sapwood.graphs.relocate import Functions, by_op, resolve
from sapwood.units import Addr, Size


@dataclass(frozen=True, slots=True)
class Staged:
    """A place that every replay copies to ``address`` first, and ``back`` after."""

    symbol: int
    address: Addr
    size: Size
    back: bool


class Copies(NamedTuple):
    """Staged places that one op copies in, or ``back``."""

    symbols: tuple[int, ...]
    addresses: tuple[Addr, ...]
    sizes: tuple[Size, ...]
    back: bool

    def op(self, places: Sequence[Addr]) -> CopiesOp:
        """Return the op; ``places`` are by symbol."""
        theirs = tuple([places[symbol] for symbol in self.symbols])
        if self.back:
            return CopiesOp(theirs, self.addresses, self.sizes)
        return CopiesOp(self.addresses, theirs, self.sizes)


class Lent(NamedTuple):
    """An exec that C may aim and launch, too.

    ``words`` are by symbol: ``(number, address)`` of each word that is to hold where
    a staged place is, the number being that of its node among ``native.copies``. C may
    launch where all places that are aimed at are among them: by ``launch``, if there
    is one.
    """

    native: Native
    words: Mapping[int, Sequence[tuple[int, int]]]
    launch: Callable[[], object] | None = None


class Exec:
    """An instantiated graph, owned; made by `instantiate`."""

    def __init__(
        self,
        driver: Driver,
        handle: ExecHandle,
        addresses: Sequence[Addr],
        copies: Mapping[NodeHandle, Copies],
    ) -> None:
        self.driver, self.handle = driver, handle
        self._copies = copies
        self._places = [*addresses]
        self._moved: set[int] = set()
        self._lent: Lent | None = None

    def aim(self, symbol: int, address: Addr) -> None:
        """Make further launches find a staged place at ``address``."""
        if self._places[symbol] != address:
            self._places[symbol] = address
            self._moved.add(symbol)

    def launch(self, stream: StreamHandle) -> None:
        """Run all ops, in stream order, on the places that it is aimed at.

        Raises `DriverError`, and then nothing runs.
        """
        if self._moved or self._lent is not None:
            self._settle()
        self._start(stream)

    def _start(self, stream: StreamHandle) -> None:
        self.driver.launch_graph(self.handle, stream)

    def _settle(self) -> None:
        """Tell the driver what has moved, once for each op that uses any of it."""
        moved, lent = self._moved, self._lent is not None
        for node, copies in self._copies.items():
            if lent or not moved.isdisjoint(copies.symbols):
                self.driver.set_op(self.handle, node, copies.op(self._places))
        # Half aimed is not aimed: forgotten when all is done.
        moved.clear()

    def lend(self) -> Lent | None:
        """Let C aim and launch it, too; None where the driver knows of no such thing.

        C leaves no word behind that the driver was not told of, and tells nobody here
        where it has aimed copies. So from now on each launch here sets all of them.
        """
        if self._lent is None and isinstance(self.driver, Lender):
            native = self.driver.native(self.handle, tuple(self._copies))
            self._lent = Lent(native, _words(native, self._copies.values()))
        return self._lent

    def close(self) -> None:
        """Give the instantiated graph back."""
        self.driver.destroy_exec(self.handle)


def instantiate(
    driver: Driver,
    graph: GraphHandle,
    addresses: Sequence[Addr],
    staged: Sequence[Staged],
) -> Exec:
    """Make a graph launchable as it is, staged places copied around it.

    The graph stays the caller's.
    """
    copies = surround(driver, graph, addresses, staged)
    return Exec(driver, driver.instantiate(graph), addresses, copies)


def link(
    driver: Driver,
    recording: Recording,
    addresses: Sequence[Addr],
    staged: Sequence[Staged],
    functions: Functions,
) -> Exec:
    """Build the graph of a recording anew, its symbols at ``addresses``.

    Staged places are copied from there, and the ops find the copies.
    """
    graph = driver.create_graph()
    with forgotten(driver, graph) as made:
        _build(driver, graph, recording, addresses, staged, functions)
        made.append(instantiate(driver, graph, addresses, staged))
    return made[0]


@contextmanager
def forgotten(driver: Driver, graph: GraphHandle) -> Iterator[list[Exec]]:
    """Forget a graph when something launchable was made of it, or nothing.

    Yields the list that this belongs into: it is closed where that fails.
    """
    made: list[Exec] = []
    try:
        yield made
    except BaseException:
        driver.destroy_graph(graph)
        raise
    try:
        driver.destroy_graph(graph)
    except DriverError:
        for each in made:
            each.close()
        raise


def surround(
    driver: Driver,
    graph: GraphHandle,
    addresses: Sequence[Addr],
    staged: Sequence[Staged],
) -> dict[NodeHandle, Copies]:
    """Have staged places copied before all that is in a graph, and back behind it."""
    into = list(_batches(staged, back=False))
    back = list(_batches([each for each in staged if each.back], back=True))
    ops = [tuple(each.op(addresses) for each in side) for side in (into, back)]
    first, last = driver.surround(graph, *ops)
    return dict(zip((*first, *last), (*into, *back), strict=True))


def _words(
    native: Native, copies: Iterable[Copies]
) -> dict[int, list[tuple[int, int]]]:
    words: dict[int, list[tuple[int, int]]] = {}
    for number, (node, each) in enumerate(zip(native.copies, copies, strict=True)):
        start = node.dsts if each.back else node.srcs
        for i, symbol in enumerate(each.symbols):
            words.setdefault(symbol, []).append((number, start + 8 * i))
    return words


def _batches(staged: Sequence[Staged], *, back: bool) -> Iterator[Copies]:
    for start in range(0, len(staged), MOST_COPIES):
        batch = staged[start : start + MOST_COPIES]
        rows = [(each.symbol, each.address, each.size) for each in batch]
        symbols, addresses, sizes = zip(*rows, strict=True)
        yield Copies(symbols, addresses, sizes, back)


def _build(
    driver: Driver,
    graph: GraphHandle,
    recording: Recording,
    places: Sequence[Addr],
    staged: Sequence[Staged],
    functions: Functions,
) -> None:
    addresses = list(places)
    for place in staged:
        addresses[place.symbol] = place.address
    before: dict[int, list[int]] = {}
    for first, second in recording.edges:
        before.setdefault(second, []).append(first)
    relocations = by_op(recording.relocations)
    nodes: list[NodeHandle] = []
    for i, op in enumerate(recording.ops):
        changed: Sequence[Relocation] = relocations.get(i, ())
        after = tuple(nodes[j] for j in before.get(i, ()))
        resolved = resolve(op, changed, addresses, functions)
        nodes.append(driver.add_node(graph, resolved, after))
