"""What gives way when a store is full: a pure choice among what is there.

The longest unused goes first. A blob that a manifest names stays as long as the
manifest and goes with the last that names it, except one that was used after its
manifest was: whoever used it is about to name it anew, so it goes in its own turn. So
does a blob without a manifest, which may be about to get one; when it has waited too
long it goes before all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from sapwood.persist.api import Item
from sapwood.persist.key import BLOB

YOUNG: Final = 60 * 10**9
"""Nanoseconds after its last use for which a blob may be waiting for its manifest."""

LAST: Final = 2
"""The turn of blobs that may be about to be named: after all that was put whole."""


@dataclass(frozen=True, slots=True)
class Want:
    """How many bytes must go, and how many should, so that this is not done often."""

    must: int
    should: int

    @classmethod
    def of(cls, size: int, limit: int) -> Want:
        """Return what is wanted of a store that would hold ``size`` bytes."""
        must = max(size - limit, 0)
        return cls(must, must + limit // 8 if must else 0)


def victims(
    items: Collection[Item], needs: Mapping[str, Iterable[str]], want: Want, now: int
) -> list[tuple[str, ...]]:
    """Return groups of names to delete, in the order in which to do it.

    A group is a name and the blobs that only it still needed. ``needs`` says which
    blobs each manifest names, and whoever else holds blobs; ``now`` is in nanoseconds
    since the epoch. What the manifests left behind name is never chosen.
    """
    here = {item.name: item for item in items}
    held = Counter(blob for blobs in needs.values() for blob in set(blobs))
    queue = [_turn(item, now) for item in items if not held[item.name]]
    heapify(queue)
    groups: list[tuple[str, ...]] = []
    freed = 0
    while queue and freed < want.should:
        turn, used, name = heappop(queue)
        if turn == LAST and freed >= want.must:
            continue  # perhaps it is about to be named, and it need not go
        group = [here[name]]
        for blob in _let_go(needs.get(name, ()), held):
            if blob not in here:
                continue
            if here[blob].used > max(used, now - YOUNG):
                heappush(queue, _turn(here[blob], now))
            else:
                group.append(here[blob])
        groups.append(tuple(item.name for item in group))
        freed += sum(item.size for item in group)
    return groups


def _turn(item: Item, now: int) -> tuple[int, int, str]:
    """Return what sorts items by when they go, of those that nothing holds."""
    if not item.name.startswith(BLOB):
        turn = LAST - 1
    else:
        turn = LAST if item.used > now - YOUNG else 0
    return turn, item.used, item.name


def _let_go(blobs: Iterable[str], held: Counter[str]) -> list[str]:
    """Return which of the blobs of one holder nothing holds without it."""
    held.subtract(set(blobs))
    return [blob for blob in sorted(set(blobs)) if not held[blob]]
