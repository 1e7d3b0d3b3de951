"""From a captured driver graph to a recording: every address is accounted for."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from sapwood.driver.api import (
    CopiesOp,
    CopyOp,
    Driver,
    EmptyOp,
    FunctionHandle,
    GraphHandle,
    HostOp,
    KernelOp,
    Op,
    Pointer,
    SetOp,
)
from sapwood.errors import CaptureError
from sapwood.graphs.recording import (
    FIXED,
    WORD,
    Kind,
    RecordedOp,
    Recording,
    Relocation,
    Touch,
)
from sapwood.graphs.relocate import pointers_of
from sapwood.units import Addr, hex_address, size_text


@dataclass(frozen=True, slots=True)
class Region:
    """Addresses ``[lo, hi)`` that belong to a symbol, whose own address is ``at``."""

    lo: Addr
    hi: Addr
    symbol: int
    at: Addr


@dataclass(frozen=True, slots=True)
class Foreign:
    """An op uses bytes that belong to no region."""

    op: int
    pointer: Pointer
    name: str = ""


@dataclass(frozen=True, slots=True)
class GraphOps:
    """What is in a captured graph: its ops, and the addresses that each uses."""

    ops: tuple[RecordedOp, ...]
    edges: tuple[tuple[int, int], ...]
    pointers: Sequence[tuple[Pointer, ...]]

    def touched(self) -> list[tuple[Addr, Addr]]:
        """Return every interval of addresses that the ops use."""
        return [(p.lo, p.hi) for each in self.pointers for p in each if p.lo < p.hi]

    def recording(self, regions: Sequence[Region]) -> Recording | Foreign:
        """Return the graph as a recording, or the first foreign address in it.

        ``regions`` do not overlap.
        """
        regions = sorted(regions, key=_start)
        relocations: list[Relocation] = []
        touches: dict[Touch, None] = {}
        for i, (op, pointers) in enumerate(zip(self.ops, self.pointers, strict=True)):
            for pointer in pointers:
                if pointer.lo == pointer.hi:
                    continue
                region = _region_of(regions, pointer)
                if region is None:
                    return Foreign(i, pointer, op.name)
                if region.symbol == FIXED:
                    continue
                (address,) = WORD.unpack_from(op.params, pointer.offset)
                addend = address - region.at
                relocations.append(Relocation(i, pointer.offset, region.symbol, addend))
                used = pointer if pointer.exact else region
                lo, hi = used.lo - region.at, used.hi - region.at
                touches[Touch(region.symbol, lo, hi, pointer.writes)] = None
        return Recording(self.ops, self.edges, tuple(relocations), tuple(touches))


def ops_of(
    driver: Driver,
    graph: GraphHandle,
    kernel: Callable[[FunctionHandle], tuple[bytes, str]],
) -> GraphOps:
    """Return what is in a captured graph.

    ``kernel`` gives the module image and the name of a function. Raises `CaptureError`
    for ops that no recording may hold.
    """
    nodes = driver.nodes(graph)
    order = {node: i for i, node in enumerate(nodes)}
    found = [_plain(driver, driver.node_op(node), kernel) for node in nodes]
    edges = tuple((order[a], order[b]) for a, b in driver.edges(graph))
    return GraphOps(tuple(op for op, _ in found), edges, [each for _, each in found])


_start: Final[Callable[[Region], Addr]] = attrgetter("lo")


def _region_of(regions: Sequence[Region], pointer: Pointer) -> Region | None:
    """Return that of sorted regions which holds what a pointer says is used.

    Kernels take ends, too: of one that is not exact it may be that of a region.
    """
    at = bisect.bisect_right(regions, pointer.lo, key=_start) - 1
    if at >= 0 and pointer.hi <= regions[at].hi:
        return regions[at]
    at = bisect.bisect_left(regions, pointer.lo, key=_start) - 1
    ends = not pointer.exact and at >= 0 and regions[at].hi == pointer.lo
    return regions[at] if ends else None


def _plain(
    driver: Driver, op: Op, kernel: Callable[[FunctionHandle], tuple[bytes, str]]
) -> tuple[RecordedOp, tuple[Pointer, ...]]:
    match op:
        case KernelOp(function, params):
            image, name = kernel(function)
            shape = op.grid, op.block, op.shared, op.cluster
            plain = RecordedOp(Kind.KERNEL, params, image, name, *shape)
        case CopyOp(dst, src, size) if dst < src + size and src < dst + size:
            raise CaptureError(
                f"{size_text(size)} were copied onto bytes that overlap them, and what "
                "that gives is undefined",
                remedy="Copy through another array: x[1:] = x[:-1].copy()",
            )
        case CopyOp(dst, src, size):
            plain = RecordedOp(Kind.COPY, b"".join(map(WORD.pack, (dst, src, size))))
        case SetOp(dst, value, size):
            plain = RecordedOp(Kind.SET, b"".join(map(WORD.pack, (dst, value, size))))
        case EmptyOp():
            plain = RecordedOp(Kind.EMPTY, b"")
        case HostOp():
            raise CaptureError(
                "a host call was captured, and it would run on every replay unseen",
                remedy="Call it outside the graphed function",
            )
        case CopiesOp():
            raise CaptureError(
                "copies that linking adds to a graph were captured with it",
                remedy="Record what was captured before it is linked",
            )
    pointers = pointers_of(driver, op)
    if pointers is None:
        raise CaptureError(
            f"the device does not know the addresses among {plain.name}'s parameters",
            remedy="Record it through an integration that knows them",
        )
    return plain, pointers


def describe_foreign(foreign: Foreign) -> str:
    """Return what a foreign address is, as text."""
    pointer = foreign.pointer
    op = f"op {foreign.op}" + (f" ({foreign.name})" if foreign.name else "")
    if not pointer.exact:
        return f"{op} uses memory at {hex_address(pointer.lo)}"
    verb = "writes" if pointer.writes else "reads"
    size = size_text(pointer.hi - pointer.lo)
    return f"{op} {verb} {size} at {hex_address(pointer.lo)}"
