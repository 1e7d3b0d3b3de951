"""All recordings of a function, packed for a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from contextlib import suppress

from sapwood.errors import MisuseError, StoreError
from sapwood.persist.archive import encode
from sapwood.persist.bundle import Packer
from sapwood.tree.choose.function_cache import FunctionCache
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.guards import Slot
from sapwood.tree.node.node import Node

__all__ = ["pack"]


def pack(
    function: str, cache: FunctionCache, recordings: Recordings
) -> dict[str, bytes]:
    """Return all recordings of a function, and their arrays, as sections.

    Raises `StoreError` where there are none, or one cannot be kept.
    """
    packer, labels = Packer(recordings.device, recordings.integration), _Labels()
    for groups in cache.groups.values():
        for specialization in groups:
            # The others differ in roles and pages only.
            node = next(
                (node for node in specialization.nodes if not node.escapes), None
            )
            if node is not None:
                _pack(node, cache, packer, labels)
    if not packer.sections:
        raise StoreError(
            f"{function} has no recording that could be saved. Call it at least twice, "
            "or use warm(), and save it then"
        )
    return packer.seal(function)


class _Labels:
    """Names of slots in one file: their paths, told apart where two look alike."""

    def __init__(self) -> None:
        self._known: dict[Hashable, str] = {}
        self._count: Counter[str] = Counter()

    def __call__(self, slot: Slot) -> str:
        root = slot.root if isinstance(slot.root, str) else id(slot.root())
        key = (root, slot.steps)
        if key not in self._known:
            self._count[slot.path] += 1
            number = self._count[slot.path]
            self._known[key] = slot.path if number == 1 else f"{slot.path} ({number})"
        return self._known[key]


def _pack(node: Node, cache: FunctionCache, packer: Packer, labels: _Labels) -> None:
    ambient = node.ambient.match()
    if ambient is None:
        return  # it was recorded for values that are no more
    origins, bound = cache.origins[node], cache.bound[node]
    for slot in bound:
        if isinstance(slot.root, str):
            raise StoreError(
                f"{node.label} cannot be saved: it binds {slot.path}, which is in an "
                "argument. Return the array instead"
            )
    archive = encode(node, bound, origins.sharing, packer.integration, labels)
    if isinstance(archive, str):
        raise StoreError(f"{node.label} cannot be saved: {archive}")
    if origins.signature is None:
        raise StoreError(
            f"{node.label} cannot be saved: an argument is no array and no plain "
            "value. Pass what the function needs of it"
        )
    arrays = dict(zip(map(labels, node.ambient.arrays), ambient, strict=True))
    for slot in bound:
        # What is bound and not read is there as well, so that nothing is new then.
        with suppress(MisuseError):
            held = slot.read()
            if packer.integration.look(held) is not None:
                arrays.setdefault(labels(slot), held)
    packer.add(
        origins.signature,
        archive,
        origins.arrays,
        origins.fixed,
        arrays,
    )
