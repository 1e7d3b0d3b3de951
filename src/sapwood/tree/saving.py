"""What a function's recordings were made for, and all of them packed for a file."""

from __future__ import annotations

import weakref

from sapwood.errors import StoreError
from sapwood.tree.adapter import Adapter
from sapwood.tree.ambient import Survey
from sapwood.tree.archive import encode
from sapwood.tree.families import Families
from sapwood.tree.forest import Forest
from sapwood.tree.naming import signature_text
from sapwood.tree.node import Node
from sapwood.tree.parcel import Origin, Origins, Packer
from sapwood.tree.signature import Arrays, Call, look

__all__ = ["origins_of", "pack"]


def origins_of(
    node: Node,
    call: Call,
    survey: Survey,
    ambient: Arrays,
    names: list[str],
    adapter: Adapter,
) -> Origins:
    """Describe the call that a recording was made for."""
    given = call.given
    fixed = {i for i, _ in node.fixed}
    return Origins(
        signature_text(call, survey),
        tuple(
            Origin(
                name,
                adapter.text(array),
                adapter.template(array),
                adapter.address(array),
                weakref.ref(adapter.storage(array)),
            )
            for name, array in zip(names, given.arrays, strict=True)
        ),
        tuple(k for i, group in enumerate(given.groups()) if i in fixed for k in group),
        look([*given.arrays, *ambient.arrays], adapter).sharing,
    )


def pack(function: str, families: Families, forest: Forest) -> dict[str, bytes]:
    """Return all recordings of a function, and their arrays, as sections.

    Raises `StoreError` where there are none, or one cannot be kept.
    """
    packer = Packer(forest.device, forest.adapter)
    for groups in families.groups.values():
        for group in groups:
            # The others differ in roles and pages only.
            node = next((node for node in group.nodes if not node.escapes), None)
            if node is not None:
                _pack(node, families, packer)
    if not packer.sections:
        raise StoreError(
            f"{function} has no recording that could be saved. Call it at least twice, "
            "or use warm(), and save it then"
        )
    return packer.seal(function)


def _pack(node: Node, families: Families, packer: Packer) -> None:
    ambient = node.ambient.match()
    if ambient is None:
        return  # it was recorded for values that are no more
    origins, bound = families.origins[node], families.bound[node]
    for slot in bound:
        if isinstance(slot.root, str):
            raise StoreError(
                f"{node.label} cannot be saved: it binds {slot.path}, which is in an "
                "argument. Return the array instead"
            )
    archive = encode(node, bound, origins.sharing, packer.adapter)
    if isinstance(archive, str):
        raise StoreError(f"{node.label} cannot be saved: {archive}")
    if origins.signature is None:
        raise StoreError(
            f"{node.label} cannot be saved: an argument is no array and no plain "
            "value. Pass what the function needs of it"
        )
    paths = [slot.path for slot in node.ambient.arrays]
    packer.add(
        origins.signature,
        archive,
        origins.arrays,
        origins.fixed,
        dict(zip(paths, ambient, strict=True)),
    )
