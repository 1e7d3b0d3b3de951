"""Where a recording's addresses are in its parameters, and giving them their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from sapwood.driver.api import (
    CopyOp,
    Driver,
    EmptyOp,
    FunctionHandle,
    KernelOp,
    Op,
    Pointer,
    SetOp,
)
from sapwood.errors import InternalError
from sapwood.graphs.recording import WORD, Kind, RecordedOp, Relocation
from sapwood.units import Addr, Size

Functions = Callable[[bytes, str], FunctionHandle]
"""Finds a kernel by module image and name."""


def by_op(relocations: Iterable[Relocation]) -> Mapping[int, list[Relocation]]:
    """Group relocations by the op they change."""
    grouped: dict[int, list[Relocation]] = {}
    for relocation in relocations:
        grouped.setdefault(relocation.op, []).append(relocation)
    return grouped


def resolve(
    op: RecordedOp,
    relocations: Iterable[Relocation],
    addresses: Sequence[Addr],
    function: Functions,
) -> Op:
    """Return a driver op with every address in it; ``addresses`` are by symbol."""
    params = bytearray(op.params)
    for relocation in relocations:
        address = addresses[relocation.symbol] + relocation.addend
        WORD.pack_into(params, relocation.offset, address)
    match op.kind:
        case Kind.KERNEL:
            handle = function(op.image, op.name)
            shape = op.grid, op.block, op.shared, op.cluster
            return KernelOp(handle, bytes(params), *shape)
        case Kind.COPY:
            dst, src, size = (word for (word,) in WORD.iter_unpack(params))
            return CopyOp(Addr(dst), Addr(src), Size(size))
        case Kind.SET:
            dst, value, size = (word for (word,) in WORD.iter_unpack(params))
            return SetOp(Addr(dst), value, Size(size))
        case Kind.EMPTY:
            return EmptyOp()
    raise InternalError(f"an op is of a known kind, not {op.kind}")


def pointers_of(driver: Driver, op: Op) -> tuple[Pointer, ...] | None:
    """Return the addresses in an op's parameters; None where nobody knows them."""
    match op:
        case KernelOp(function, params):
            return driver.pointers(function, params)
        case CopyOp(dst, src, size):
            return (
                Pointer(0, dst, Addr(dst + size), writes=True),
                Pointer(8, src, Addr(src + size), writes=False),
            )
        case SetOp(dst, _, size):
            return (Pointer(0, dst, Addr(dst + size), writes=True),)
        case _:
            return ()
