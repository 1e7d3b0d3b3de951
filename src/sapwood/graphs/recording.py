"""A recording: what a function gave to the device, as immutable plain data.

Like an object file: no handle of a device and no address that holds for one process
only. Every address is a relocation against a *symbol*: 0 is the recording's range,
1 + p is place p, the bytes of an argument or of an ambient array.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

FIXED: Final = -1
"""Stands for addresses that are part of a recording as they are."""

RANGE: Final = 0
WORD: Final = struct.Struct("<Q")


class Kind:
    """What an op does."""

    KERNEL: Final = "kernel"
    COPY: Final = "copy"
    """Parameters: destination, source, size."""
    SET: Final = "set"
    """Parameters: destination, value, size."""
    EMPTY: Final = "empty"


@dataclass(frozen=True, slots=True)
class RecordedOp:
    """One op: its kind, the kernel by module image and name, parameters, grid."""

    kind: str
    params: bytes
    image: bytes = b""
    name: str = ""
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)


@dataclass(frozen=True, slots=True)
class Relocation:
    """The word at ``offset`` of an op's parameters is ``symbol + addend``."""

    op: int
    offset: int
    symbol: int
    addend: int


class Touch(NamedTuple):
    """The ops use bytes ``[lo, hi)`` of a symbol, and write them or only read."""

    symbol: int
    lo: int
    hi: int
    writes: bool


@dataclass(frozen=True, slots=True)
class Recording:
    """Ops in an order in which they may run, and the edges between them."""

    ops: tuple[RecordedOp, ...]
    edges: tuple[tuple[int, int], ...]
    relocations: tuple[Relocation, ...]
    touches: tuple[Touch, ...]

    def changed(self) -> frozenset[int]:
        """Return the symbols that the ops write."""
        return frozenset(t.symbol for t in self.touches if t.writes)

    def symbols(self) -> frozenset[int]:
        """Return the symbols that the ops use."""
        return frozenset(t.symbol for t in self.touches)
