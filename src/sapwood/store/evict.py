"""What gives way when a store is full: a pure choice among what is there.

Manifests go by least recent use, and take with them the blobs that no other manifest
names. A blob without a manifest may belong to an entry that is just being put: it goes
first when it is old, and last while it is young. So does one that was used after its
manifest: whoever used it is about to name it.
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
    here = {item.name: item for item in items}
    held = Counter(blob for blobs in needs.values() for blob in set(blobs))
    firm, old, young = _sorted_out(items, held, now - YOUNG)
    groups: list[tuple[str, ...]] = []
    freed = 0
    for item in (*old, *firm):
        if freed >= want.should:
            break
        let_go = [here[b] for b in _let_go(needs.get(item.name, ()), held) if b in here]
        # Used after its manifest was: somebody holds it who is about to name it.
        busy = [b for b in let_go if b.used > max(item.used, now - YOUNG)]
        young += busy
        gone = (item, *(blob for blob in let_go if blob not in busy))
        groups.append(tuple(item.name for item in gone))
        freed += sum(item.size for item in gone)
    for item in sorted(young, key=_by_use):
        if freed >= want.must:
            break
        groups.append((item.name,))
        freed += item.size
    return groups


def _by_use(item: Item) -> tuple[int, str]:
    return item.used, item.name


def _sorted_out(
    items: Iterable[Item], held: Mapping[str, int], young: int
) -> tuple[list[Item], list[Item], list[Item]]:
    """Return what stands for itself, and old and young blobs that nobody holds.

    The longest unused come first.
    """
    firm, loose = [], []
    for item in sorted(items, key=_by_use):
        if not item.name.startswith(BLOB):
            firm.append(item)
        elif not held[item.name]:
            loose.append(item)
    return (
        firm,
        [blob for blob in loose if blob.used <= young],
        [blob for blob in loose if blob.used > young],
    )


def _let_go(blobs: Iterable[str], held: Counter[str]) -> list[str]:
    """Return which of the blobs of one holder nothing holds without it."""
    held.subtract(set(blobs))
    return [blob for blob in sorted(set(blobs)) if not held[blob]]
