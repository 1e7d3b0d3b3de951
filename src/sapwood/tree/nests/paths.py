"""What a user would write for the leaves of a nest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sapwood.tree.nests.containers import Structure, container_of

__all__ = ["paths"]


def paths(structure: Structure, root: str = "args") -> tuple[str, ...]:
    """Return the name of each leaf as a user would write it: ``args[0]['w'].bias``."""
    return tuple(_name(structure, root))


def _name(structure: Any, path: str) -> Iterator[str]:
    if structure is None:
        yield path
    if structure is None or type(structure) is int:
        return
    cls, rest, folded = structure
    container = container_of(cls)
    labels = (
        [f"[{index}]" for index in range(len(folded))]
        if container is None
        else (container.labels(rest, len(folded)))
    )
    for label, child in zip(labels, folded, strict=True):
        yield from _name(child, path + label)
