"""Two captures of one function, held against each other: what is an address? Pure.

Where a device cannot tell addresses from numbers, one capture shows what looks like
one. Another, with arrays elsewhere, shows what moves along with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sapwood.graphs.recording import RANGE, WORD, RecordedOp, Recording, Relocation
from sapwood.tree.call.roles import Role
from sapwood.units import Addr

_Found = Mapping[int, Relocation]


@dataclass(frozen=True, slots=True)
class AddressTrace:
    """A capture: the names of its places, and where they were, by symbol."""

    recording: Recording
    names: tuple[str, ...]
    addresses: tuple[Addr, ...]


def confirmed(
    roles: Sequence[Role], trace: AddressTrace, before: AddressTrace
) -> tuple[Role, ...] | None:
    """Return the roles, with places pinned whose addresses are not all known.

    None where the two captures differ by more than addresses.
    """
    symbols = known(trace, before)
    if symbols is None:
        return None
    used = trace.recording.symbols()
    return tuple(
        Role.PINNED if role is Role.PATCHED and i in used and i not in symbols else role
        for i, role in enumerate(roles, 1)
    )


def known(trace: AddressTrace, before: AddressTrace) -> frozenset[int] | None:
    """Return the symbols that moved, and of which every address is known.

    None where the captures differ by more than addresses.
    """
    now, then = trace.recording, before.recording
    if trace.names != before.names or now.edges != then.edges:
        return None
    if len(now.ops) != len(then.ops):
        return None
    unknown: set[int] = set()
    here, there = _by_op(now), _by_op(then)
    for i, (op, other) in enumerate(zip(now.ops, then.ops, strict=True)):
        if replace(op, params=b"") != replace(other, params=b""):
            return None
        doubtful = _doubtful(op, other, here.get(i, {}), there.get(i, {}))
        if doubtful is None:
            return None
        unknown |= doubtful
    pairs = zip(trace.addresses, before.addresses, strict=True)
    moved = {i for i, (a, b) in enumerate(pairs) if a != b}
    return frozenset(moved - unknown)


def _by_op(recording: Recording) -> dict[int, dict[int, Relocation]]:
    found: dict[int, dict[int, Relocation]] = {}
    for relocation in recording.relocations:
        found.setdefault(relocation.op, {})[relocation.offset] = relocation
    return found


def _doubtful(
    op: RecordedOp, other: RecordedOp, here: _Found, there: _Found
) -> set[int] | None:
    """Return the symbols of which an op may hold a number, and no address."""
    now, then = bytearray(op.params), bytearray(other.params)
    if len(now) != len(then):
        return None
    doubtful: set[int] = set()
    for offset in here.keys() | there.keys():
        mine, theirs = here.get(offset), there.get(offset)
        if _same_word(mine, theirs):
            WORD.pack_into(now, offset, 0)
            WORD.pack_into(then, offset, 0)
        else:
            # The rest of the bytes tells whether it is the same number in both.
            doubtful |= {each.symbol for each in (mine, theirs) if each is not None}
    return doubtful if now == then else None


def _same_word(mine: Relocation | None, theirs: Relocation | None) -> bool:
    if mine is None or theirs is None or mine.symbol != theirs.symbol:
        return False
    # Where in its range a temporary lies is each capture's own business.
    return mine.symbol == RANGE or mine.addend == theirs.addend
