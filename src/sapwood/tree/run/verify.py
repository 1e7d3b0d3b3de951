"""Holding a replay against an eager run of the same call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from sapwood.errors import InternalError
from sapwood.memory.storage import Storage
from sapwood.tree.call.adapter import Adapter
from sapwood.tree.call.signature import Call
from sapwood.tree.choose.recordings import Forest
from sapwood.tree.choose.specialization import Group
from sapwood.tree.guards import BoundArray, Change, Survey, undo_bound
from sapwood.tree.nests.containers import constant_key, flatten
from sapwood.tree.node.node import Node
from sapwood.tree.node.objects import unpacked
from sapwood.tree.record.preserve import Preserved

__all__ = ["distrust", "reachable", "verified"]

_REMEDY: Final = (
    "Most likely the function reads what no guard sees: a file, the time, a random "
    "source, what a C function keeps. Look for that in all that it calls, and pass it "
    "as an argument"
)


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
    `InternalError` where result, slots or memory differ by a bit.
    """
    before, adapter = look(), forest.adapter
    start = Preserved(forest.device, storages).save()
    rewind = forest.device.framework.chance()
    expected = _bits(eager(), adapter)
    changes = look().changes_since(before)
    expected |= _bound(changes, adapter)
    undo_bound(changes)
    end = Preserved(forest.device, storages).save()
    start.restore()
    rewind()
    result = replayed()
    found = _bits(result, adapter) | _bound(look().changes_since(before), adapter)
    names = [*expected, *(name for name in found if name not in expected)]
    wrong = [name for name in names if found.get(name) != expected.get(name)]
    written = [f"{storage.size} bytes that it wrote" for storage in end.differing()]
    if wrong or written:
        differ = "differs" if len(wrong) == 1 and not written else "differ"
        raise InternalError(
            f"a replay of {label} equals an eager run "
            f"({', '.join([*wrong, *written])} {differ})",
            forest.snapshot(),
            remedy=_REMEDY,
        )
    return result


def _bits(result: Any, adapter: Adapter) -> dict[str, Hashable]:
    leaves, _ = flatten(unpacked(result, adapter.is_array), adapter.is_array)
    return {f"output {i}": _key(leaf, adapter) for i, leaf in enumerate(leaves)}


def _bound(changes: Sequence[Change], adapter: Adapter) -> dict[str, Hashable]:
    return {
        change.path: _key(change.new, adapter)
        for change in changes
        if isinstance(change, BoundArray)
    }


def _key(leaf: Any, adapter: Adapter) -> Hashable:
    if adapter.is_array(leaf):
        return adapter.layout(leaf), adapter.bits(leaf)
    return constant_key(leaf)


def distrust(forest: Forest, group: Group, node: Node) -> None:
    """Forget what was recorded under the same values as a node that was wrong."""
    group.warm = group.archive = None
    for each in list(group.nodes):
        forest.fell(each, f"a replay of {node.label} was not as an eager run")
