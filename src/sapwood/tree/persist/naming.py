"""The name of a call in a store: equal for calls that one recording serves.

It is a `Key`: labelled parts, so that why two calls differ can be read off it.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from sapwood.driver.api import Abilities
from sapwood.graphs.plain import Json, to_json, to_text
from sapwood.store.key import Key
from sapwood.tree.call.signature import Call
from sapwood.tree.format.codec import FORMAT
from sapwood.tree.format.structures import dump_structure
from sapwood.tree.guards import Survey
from sapwood.tree.guards.proof import proof
from sapwood.version import __version__

__all__ = ["key_of", "signature_text"]


@cache
def _machine() -> tuple[tuple[str, bytes], ...]:
    return (
        ("format", str(FORMAT).encode()),
        ("python", str(sys.implementation.cache_tag).encode()),
        ("sapwood", __version__.encode()),
    )


def key_of(
    function: str, call: Call, survey: Survey, abilities: Abilities
) -> Key | str:
    """Return the key of a call of a function, or why it has none.

    It has none where it reads what cannot be proved to be the same in another process.
    """
    parts, unproved = survey.fingerprint
    if unproved:
        return f"{unproved[0]} cannot be proved to be the same in another process"
    signature = signature_text(call, survey)
    if signature is None:
        return "an argument cannot be proved to be the same in another process"
    device = f"{abilities.kind}, {abilities.name}, pages of {abilities.page} bytes"
    return Key(
        (
            *_machine(),
            ("device", device.encode()),
            ("function", function.encode()),
            ("signature", signature),
            ("what is one object", _what_is_one(call, survey)),
            *((f"reads {label}", value) for label, value in parts),
        )
    )


def _what_is_one(call: Call, survey: Survey) -> bytes:
    _, *both = survey.key_with(call.given.arrays, call.nests)
    return repr(both).encode()


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
                leaves.append(to_json(layouts[i]))
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
