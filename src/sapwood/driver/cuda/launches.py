"""What the kernel nodes of an exec are set to, kept as CUDA takes it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from sapwood.driver.api import CopiesOp, CopyOp, KernelOp
from sapwood.driver.cuda.copies import room_for
from sapwood.driver.cuda.kernels import Packed

__all__ = ["Launch", "shape_of"]


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
        return cls(shape_of(op), packed, params, column, 8 * room_for(number))

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


def shape_of(op: KernelOp | CopyOp | CopiesOp) -> tuple[Any, ...]:
    """Return all of an op but its words."""
    match op:
        case CopiesOp():
            return op.sizes
        case CopyOp():
            return (op.size,)
        case KernelOp():
            return op.function, op.grid, op.block, op.shared, op.cluster
