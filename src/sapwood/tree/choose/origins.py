"""The calls that recordings were made for, described without keeping arrays alive."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Integration, Layout, text_of
from sapwood.tree.call.signature import Arrays, Call, look
from sapwood.tree.guards import Survey
from sapwood.tree.guards.proof import proof
from sapwood.tree.nests.plain import Json, to_json, to_text
from sapwood.tree.nests.structures import dump_structure
from sapwood.tree.node.node import Node
from sapwood.units import Addr


class Origin(NamedTuple):
    """One array argument of a recorded call; its bytes are held weakly."""

    name: str
    text: str
    layout: Layout
    address: Addr
    storage: weakref.ref[Storage]


class Origins(NamedTuple):
    """The call that a recording was made for, without keeping its arrays alive.

    ``signature`` is its text, if it has one; ``arrays`` its array arguments, ``fixed``
    those of them at a fixed address; ``sharing`` says which of all arrays, ambient
    ones included, share a storage.
    """

    signature: bytes | None
    arrays: tuple[Origin, ...]
    fixed: tuple[int, ...]
    sharing: Any


def origins_of(
    node: Node, call: Call, ambient: Arrays, names: list[str], integration: Integration
) -> Origins:
    """Describe the call that a recording was made for."""
    given = call.given
    groups = given.groups()
    fixed = (k for i, _ in node.fixed for k in groups[i])
    looks = map(integration.look, given.arrays)
    arguments = (
        Origin(name, text_of(array), at.layout, at.address, weakref.ref(at.storage))
        for name, array, at in zip(names, given.arrays, looks, strict=True)
    )
    # A file is called without the function: nobody looks into its arguments then.
    signature = signature_text(call, None)
    sharing = _sharing(given, ambient, integration)
    return Origins(signature, tuple(arguments), tuple(fixed), sharing)


def _sharing(given: Arrays, ambient: Arrays, integration: Integration) -> Any:
    """Return which arrays of both share a storage, as `Arrays` says it."""
    apart = given.sharing is None and ambient.sharing is None
    if apart and {*given.storages}.isdisjoint(ambient.storages):
        return None
    return look([*given.arrays, *ambient.arrays], integration).sharing


def signature_text(call: Call, survey: Survey | None) -> bytes | None:
    """Return a call's signature as text; None where it has none.

    Objects that the ``survey`` looked into are known from there.
    """
    arrays = dict(zip(call.positions, call.given.arrays, strict=True))
    key: Any = call.key
    _, layouts, sharing = key
    leaves: list[Json] = []
    try:
        for i, leaf in enumerate(call.leaves):
            if i in arrays:
                leaves.append(to_json(tuple(layouts[i])))
                continue
            proved = proof(leaf)
            if proved is None and (survey is None or not survey.reaches(leaf)):
                return None
            told = [type(leaf).__qualname__, (proved or b"").decode()]
            # Which it is of what is reached: others may look the same.
            leaves.append(told if survey is None else [*told, survey.number_of(leaf)])
        return to_text([dump_structure(call.structure), leaves, to_json(sharing)])
    except ValueError:
        return None
