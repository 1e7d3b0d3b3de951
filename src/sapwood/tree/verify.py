"""Holding a replay against an eager run of the same call."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from sapwood.errors import InternalError
from sapwood.memory.storage import Storage
from sapwood.tree.adapter import Adapter
from sapwood.tree.ambient import Survey, undo_bound
from sapwood.tree.containers import constant_key, flatten
from sapwood.tree.forest import Forest
from sapwood.tree.preserve import Preserved
from sapwood.tree.signature import Call

__all__ = ["reachable", "verified"]


def reachable(call: Call, survey: Survey, adapter: Adapter) -> list[Storage]:
    """Return the storages of all arrays that a call can read or write."""
    return [adapter.storage(array) for array in (*call.given.arrays, *survey.arrays())]


def verified(
    forest: Forest,
    label: str,
    storages: list[Storage],
    eager: Callable[[], Any],
    look: Callable[[], Survey],
    replayed: Callable[[], Any],
) -> Any:
    """Run a call eagerly, undo it, replay it, and return the replay's result.

    ``storages`` are all that the call can write, ``look`` surveys its slots. Raises
    `InternalError` where result or memory differ by a bit.
    """
    before = look()
    start = Preserved(forest.device, storages).save()
    expected = _bits(eager(), forest.adapter)
    undo_bound(look().changes_since(before))
    end = Preserved(forest.device, storages).save()
    start.restore()
    result = replayed()
    found = _bits(result, forest.adapter)
    wrong = [
        f"output {i}"
        for i, (a, b) in enumerate(zip(found, expected, strict=False))
        if a != b
    ]
    wrong += [f"{storage.size} bytes that it wrote" for storage in end.differing()]
    if wrong or len(found) != len(expected):
        raise InternalError(
            f"a replay of {label} equals an eager run ({', '.join(wrong)} differ)",
            forest.snapshot(),
        )
    return result


def _bits(result: Any, adapter: Adapter) -> list[Hashable]:
    leaves, _ = flatten(result, adapter.is_array)
    return [
        (adapter.layout(leaf), adapter.bits(leaf))
        if adapter.is_array(leaf)
        else constant_key(leaf)
        for leaf in leaves
    ]
