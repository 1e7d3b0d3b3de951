"""What gives way when a store is full: a pure choice among what is there.

Manifests go by least recent use, and take with them the blobs that no other manifest
names. A blob without a manifest may belong to an entry that is just being put: it goes
first when it is old, and last while it is young.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sapwood.store.api import Item
from sapwood.store.manifest import BLOB

__all__ = ["YOUNG", "Want", "victims"]

YOUNG: Final = 60 * 10**9
"""Nanoseconds after its last use for which a blob may be waiting for its manifest."""


@dataclass(frozen=True, slots=True)
class Want:
    """How many bytes must go, and how many should, so that this is not done often."""

    must: int
    should: int

    @classmethod
    def of(cls, size: int, limit: int) -> Want:
        """Return what is wanted of a store that would hold ``size`` bytes."""
        must = max(size - limit, 0)
        return cls(must, max(size - limit + limit // 8, must) if must else 0)


def victims(
    items: Collection[Item],
    needs: Mapping[str, Iterable[str]],
    want: Want,
    now: int,
) -> list[tuple[str, ...]]:
    """Return groups of names to delete, in the order in which to do it.

    A group is a name and the blobs that only it still needed. ``needs`` says which
    blobs each manifest names, and whoever else holds blobs; ``now`` is in nanoseconds
    since the epoch. What the manifests left behind name is never chosen.
    """
    sizes = {item.name: item.size for item in items}
    held = Counter(blob for blobs in needs.values() for blob in set(blobs))
    firm, loose = _sorted_out(items, held)
    young = [item.name for item in loose if item.used >= now - YOUNG]
    old = [item.name for item in loose if item.used < now - YOUNG]

    groups: list[tuple[str, ...]] = []
    freed = 0
    for goal, names in ((want.should, [*old, *firm]), (want.must, young)):
        for name in names:
            if freed >= goal:
                break
            let_go = _let_go(needs.get(name, ()), held)
            group = (name, *(blob for blob in let_go if blob in sizes))
            groups.append(group)
            freed += sum(sizes[gone] for gone in group)
    return groups


def _sorted_out(
    items: Iterable[Item], held: Mapping[str, int]
) -> tuple[list[str], list[Item]]:
    """Return what stands for itself, and blobs that nobody holds, oldest first."""
    firm, loose = [], []
    for item in sorted(items, key=lambda item: (item.used, item.name)):
        if not item.name.startswith(BLOB):
            firm.append(item.name)
        elif not held[item.name]:
            loose.append(item)
    return firm, loose


def _let_go(blobs: Iterable[str], held: Counter[str]) -> list[str]:
    """Return which of the blobs of one holder nothing holds without it."""
    held.subtract(set(blobs))
    return [blob for blob in sorted(set(blobs)) if not held[blob]]
