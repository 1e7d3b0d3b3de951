"""The name of a call in a store: equal for calls that one recording serves.

It is a `Key`: labelled parts, so that why two calls differ can be read off it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from sapwood.driver.api import Abilities
from sapwood.graphs.plain import Json, to_json, to_text
from sapwood.store.key import Key
from sapwood.tree.ambient import Survey
from sapwood.tree.ambient.proof import proof
from sapwood.tree.archive.codec import FORMAT
from sapwood.tree.archive.nests import dump_structure
from sapwood.tree.signature import Call
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
    function: str,
    call: Call,
    survey: Survey,
    abilities: Abilities,
    ops: Sequence[bytes] | None,
) -> Key | None:
    """Return the key of a call of a function; None while it has none.

    Where it reads what cannot be proved to be the same in another process, the
    digests of the ``ops`` that a warm-up ran have to prove it.
    """
    signature = signature_text(call, survey)
    parts, unproved = survey.fingerprint
    if signature is None or (unproved and ops is None):
        return None
    proved: tuple[tuple[str, bytes], ...] = ()
    if unproved and ops is not None:
        proved = (("ops", hashlib.sha256(b"".join(ops)).hexdigest().encode()),)
    device = f"{abilities.kind}, {abilities.name}, pages of {abilities.page} bytes"
    return Key(
        (
            *_machine(),
            ("device", device.encode()),
            ("function", function.encode()),
            ("signature", signature),
            ("what is one object", _what_is_one(call, survey)),
            *proved,
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
            leaves.append([type(leaf).__qualname__, (proved or b"").decode()])
        return to_text([dump_structure(call.structure), leaves, to_json(sharing)])
    except ValueError:
        return None
