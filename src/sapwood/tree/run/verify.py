"""Holding a replay against an eager run of the same call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from sapwood.errors import InternalError
from sapwood.memory.storage import Storage
from sapwood.tree.call.signature import Call
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.choose.specialization import Specialization
from sapwood.tree.guards import Survey
from sapwood.tree.guards.changes import Change, Repeated, undo_bound
from sapwood.tree.nests.containers import flatten
from sapwood.tree.node.node import Node
from sapwood.tree.node.objects import unpacked
from sapwood.tree.record.preserve import Bits, Preserved

_REMEDY: Final = (
    "Most likely the function reads what no guard sees: a file, the time, a random "
    "source, what a C function keeps. Look for that in all that it calls, and pass it "
    "as an argument"
)


def reachable(call: Call, survey: Survey, recordings: Recordings) -> list[Storage]:
    """Return the storages of all arrays that a call can read or write.

    Not of another device's, which no recording uses.
    """
    every = (*call.given.arrays, *survey.arrays())
    storages = [recordings.integration.look(array).storage for array in every]
    return [each for each in storages if each.dropped is recordings.device.returns]


def verified(
    recordings: Recordings,
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
    before, bits = look(), Bits(recordings.integration, recordings.device)
    start = Preserved(recordings.device, storages).save()
    rewind = recordings.device.framework.chance()
    with before.listening():  # it notes the terms of sums of floats
        expected = _bits(eager(), bits)
    changes = look().changes_since(before)
    expected |= _bound(changes, bits)
    undo_bound(changes)
    end = Preserved(recordings.device, storages).save()
    start.restore()
    rewind()
    result = replayed()
    found = _bits(result, bits) | _bound(look().changes_since(before), bits)
    names = [*expected, *(name for name in found if name not in expected)]
    wrong = [name for name in names if found.get(name) != expected.get(name)]
    written = [f"{storage.size} bytes that it wrote" for storage in end.differing()]
    if wrong or written:
        differ = "differs" if len(wrong) == 1 and not written else "differ"
        raise InternalError(
            f"a replay of {label} equals an eager run "
            f"({', '.join([*wrong, *written])} {differ})",
            recordings.snapshot(),
            remedy=_REMEDY,
        )
    return result


def _bits(result: Any, bits: Bits) -> dict[str, Hashable]:
    is_array = bits.integration.is_array
    leaves, _ = flatten(unpacked(result, is_array), is_array)
    return {f"output {i}": bits.of(leaf) for i, leaf in enumerate(leaves)}


def _bound(changes: Sequence[Change], bits: Bits) -> dict[str, Hashable]:
    return {
        change.path: bits.of(change.now())
        for change in changes
        if isinstance(change, Repeated)
    }


def distrust(
    recordings: Recordings, specialization: Specialization, node: Node
) -> None:
    """Forget what was recorded under the same values as a node that was wrong."""
    specialization.warm = specialization.link = None
    for each in list(specialization.nodes):
        recordings.fell(each, f"a replay of {node.label} was not as an eager run")
