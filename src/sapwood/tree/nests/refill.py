"""A call's containers with other leaves in them, or themselves where none is another.

A function may have a container that it is passed by another name, too: what it writes
there has to show in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sapwood.tree.nests.containers import Structure, is_shared, put_together

__all__ = ["refilled"]


def refilled(
    structure: Structure,
    leaves: Sequence[Any],
    before: Sequence[Any],
    containers: Sequence[Any],
) -> Any:
    """Return a nest with other leaves than it had ``before``.

    ``containers`` are its own, by number; without any, all are made anew.
    """
    return _Refilling(zip(leaves, before, strict=True), containers).nest(structure)[0]


class _Refilling:
    """One nest on its way; what it has ``made`` stands by number."""

    def __init__(
        self, leaves: Iterator[tuple[Any, Any]], containers: Sequence[Any]
    ) -> None:
        self._leaves, self._containers = leaves, containers
        self._made: list[tuple[Any, bool]] = []

    def nest(self, structure: Any) -> tuple[Any, bool]:
        """Return what a structure stands for, and whether nothing in it is another."""
        if structure is None:
            leaf, before = next(self._leaves)
            return leaf, leaf is before
        if type(structure) is int:
            return self._made[structure]
        cls, rest, folded = structure
        children = [self.nest(child) for child in folded]
        same = all(is_same for _, is_same in children)
        if is_shared(cls):
            number = len(self._made)
            kept = same and number < len(self._containers)
            value = (
                self._containers[number]
                if kept
                else put_together(cls, rest, [child for child, _ in children])
            )
            self._made.append((value, kept))
            return value, kept
        return put_together(cls, rest, [child for child, _ in children]), same
