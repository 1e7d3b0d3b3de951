"""Where a recording's temporaries lie: planned anew, as their lifetimes are known.

While a function is captured, its allocator sees one request after the other, and when
Python lets go of them. The ops show when the bytes are really in use: packed by that,
the temporaries often take fewer pages.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import pairwise

from sapwood.graphs.recording import RANGE, Recording, Relocation
from sapwood.memory.blocks import ALIGNMENT
from sapwood.units import Addr, Size, align_up

Packer = Callable[[Sequence[tuple[int, int, int]]], Sequence[int]]
"""Returns an aligned offset for each ``(lower, upper, size)``.

Those that are alive together, at any time in ``[lower, upper)``, do not overlap.
"""


@dataclass(frozen=True, slots=True)
class Made:
    """An allocation of a captured function: after how many ops, where, how large."""

    after: int
    address: Addr
    size: Size


@dataclass(slots=True)
class _Life:
    """An allocation by its offset in the range, and the ops that use it."""

    at: int
    size: Size
    after: int
    stays: bool
    ops: list[int] = field(default_factory=list)


def lay_out(
    recording: Recording,
    made: Sequence[Made],
    kept: Mapping[Addr, Size],
    base: Addr,
    pack: Packer,
) -> tuple[Recording, Addr] | None:
    """Return the recording with its temporaries packed, and where they end.

    ``made`` are the function's allocations in order, in a range that starts at
    ``base``; what is ``kept`` stays where it is, and the others lie behind that.
    Touches are those of before: inspect it again. None where ops may overlap, as then
    their order says nothing about lifetimes.
    """
    if not _is_chain(recording):
        return None
    lives = _lives(made, kept.keys(), base)
    users: list[tuple[int, _Life]] = []
    find = _Finder(lives)
    for i, relocation in enumerate(recording.relocations):
        life = find.owner(relocation) if relocation.symbol == RANGE else None
        if life is not None and not life.stays:
            life.ops.append(relocation.op)
            users.append((i, life))
    used = list({id(life): life for _, life in users}.values())
    offsets = pack([(min(t.ops), max(t.ops) + 1, max(t.size, 1)) for t in used])
    placed = list(zip(used, offsets, strict=True))
    start = align_up(_top((at - base, size) for at, size in kept.items()), ALIGNMENT)
    shifts = {id(life): start + offset - life.at for life, offset in placed}
    relocations = list(recording.relocations)
    for i, life in users:
        addend = relocations[i].addend + shifts[id(life)]
        relocations[i] = replace(relocations[i], addend=addend)
    end = start + _top((offset, life.size) for life, offset in placed)
    return replace(recording, relocations=tuple(relocations)), Addr(base + end)


def _top(spans: Iterable[tuple[int, int]]) -> int:
    return max((at + size for at, size in spans), default=0)


def _is_chain(recording: Recording) -> bool:
    """Whether each op runs after the one before it."""
    edges = set(recording.edges)
    return all(pair in edges for pair in pairwise(range(len(recording.ops))))


def _lives(made: Sequence[Made], kept: AbstractSet[Addr], base: Addr) -> list[_Life]:
    """Return the allocations; of several at a kept address the last is the one."""
    left = set(kept)
    lives = []
    for each in reversed(made):
        stays = each.address in left
        left.discard(each.address)
        lives.append(_Life(each.address - base, each.size, each.after, stays))
    return lives[::-1]


class _Finder:
    """Finds what an op means by an address: the last allocation made there before."""

    def __init__(self, lives: Sequence[_Life]) -> None:
        self._starts = sorted((life.at, i) for i, life in enumerate(lives))
        self._lives = lives
        self._largest = max((life.size for life in lives), default=0)

    def owner(self, relocation: Relocation) -> _Life | None:
        """Return the allocation that holds the address when the op runs."""
        at = relocation.addend
        low = bisect.bisect_left(self._starts, (at - self._largest, -1))
        high = bisect.bisect_left(self._starts, (at + 1, -1))
        holding = [
            i
            for start, i in self._starts[low:high]
            if self._lives[i].after <= relocation.op
            and at < start + max(self._lives[i].size, 1)
        ]
        return self._lives[max(holding)] if holding else None
