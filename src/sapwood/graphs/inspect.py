"""What a recording touches, found from its parameters: before it is linked anew.

Nothing that a file says about a recording is believed. With the addresses that it is
to be given, every pointer in its ops has to be a relocated one, and every relocated
word a pointer; where they lead is then known, and held against what is mapped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sapwood.driver.api import Driver, Pointer
from sapwood.errors import DriverError, StoreError
from sapwood.graphs.recording import Recording, Relocation, Touch
from sapwood.graphs.relocate import Functions, by_op, pointers_of, resolve
from sapwood.units import Addr

_REFUSED: Final = {"INVALID_IMAGE", "INVALID_VALUE", "NOT_FOUND"}
"""How a device says that there is no such kernel, or not with such parameters."""


def inspect(
    recording: Recording,
    addresses: Sequence[Addr],
    driver: Driver,
    functions: Functions,
) -> Recording:
    """Return the recording with its touches, as they are at these addresses.

    Raises `StoreError` where a kernel is not known, does not take its parameters, or
    addresses and relocations do not agree.
    """
    relocations = by_op(recording.relocations)
    touches: dict[Touch, None] = {}
    for i, op in enumerate(recording.ops):
        changed = {r.offset: r for r in relocations.get(i, ())}
        try:
            resolved = resolve(op, changed.values(), addresses, functions)
            pointers = pointers_of(driver, resolved)
        except (DriverError, ValueError, struct.error) as error:
            if isinstance(error, DriverError) and not is_refused(error):
                raise
            raise StoreError(f"op {i}, {op.name or op.kind}: {error}") from error
        if pointers is None:
            raise StoreError(
                f"op {i}, {op.name}: the device does not know which are addresses"
            )
        touches |= dict.fromkeys(_touches(i, pointers, changed, addresses))
    return replace(recording, touches=tuple(touches))


def is_refused(error: BaseException) -> bool:
    """Return whether a device said that it does not know or take an op."""
    return isinstance(error, DriverError) and error.name in _REFUSED


def _touches(
    number: int,
    pointers: Iterable[Pointer],
    relocations: Mapping[int, Relocation],
    addresses: Sequence[Addr],
) -> Iterable[Touch]:
    offsets = set()
    for pointer in pointers:
        offsets.add(pointer.offset)
        if pointer.lo >= pointer.hi:
            continue
        relocation = relocations.get(pointer.offset)
        if relocation is None:
            raise StoreError(f"op {number} holds an address that is not relocated")
        at = addresses[relocation.symbol]
        yield Touch(relocation.symbol, pointer.lo - at, pointer.hi - at, pointer.writes)
    if relocations.keys() - offsets:
        raise StoreError(f"op {number} has a relocation where no address is")


def strays(
    recording: Recording, bounds: Callable[[int], Sequence[tuple[int, int]]]
) -> list[Touch]:
    """Return what lies outside; ``bounds`` gives a symbol's intervals, merged."""
    return [
        touch
        for touch in recording.touches
        if not any(lo <= touch.lo and touch.hi <= hi for lo, hi in bounds(touch.symbol))
    ]
