"""The recordings in a store, by what they were made for: a `Source`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sapwood.driver.api import Abilities
from sapwood.errors import StoreError
from sapwood.persist.archive import FORMAT, decode, encode
from sapwood.persist.entries import Absent, Entries
from sapwood.persist.key import Key
from sapwood.persist.restore import restore
from sapwood.tree.call.integration import Integration
from sapwood.tree.call.signature import Call
from sapwood.tree.choose.origins import signature_text
from sapwood.tree.guards import Survey
from sapwood.tree.record.recorder import Recorded
from sapwood.tree.run.source import Link
from sapwood.version import __version__


class StoreSource:
    """The recordings in a store; a store that fails is no error, but a miss."""

    def __init__(
        self, entries: Entries, abilities: Abilities, integration: Integration
    ) -> None:
        self.entries, self.abilities, self.integration = entries, abilities, integration

    def find(self, function: str, call: Call, survey: Survey) -> Link | str:
        """Return what links an archive from the store, or why there is none."""
        key = key_of(function, call, survey, self.abilities)
        if isinstance(key, str):
            return key
        found = self.entries.find(key)
        if isinstance(found, Absent):
            return found.reason
        try:
            return partial(restore, decode(found, self.integration))
        except StoreError as error:
            return str(error)

    def keep(
        self, function: str, call: Call, survey: Survey, made: Recorded, sharing: Any
    ) -> Callable[[], None] | None:
        """Return what puts a recording into the store, if it can be kept."""
        sections = encode(made.node, made.bound, sharing, self.integration)
        if isinstance(sections, str):
            return None

        def put() -> None:
            key = key_of(function, call, survey, self.abilities)
            if not isinstance(key, str):
                self.entries.put(key, sections)

        return put


_MACHINE: Final = (
    ("format", str(FORMAT).encode()),
    ("python", str(sys.implementation.cache_tag).encode()),
    ("sapwood", __version__.encode()),
)


def key_of(
    function: str, call: Call, survey: Survey, abilities: Abilities
) -> Key | str:
    """Return the key of a call: equal for calls that one recording serves.

    It has none where it reads what cannot be proved to be the same in another process;
    then this returns why.
    """
    parts, unproved = survey.fingerprint
    if unproved:
        return f"{unproved[0]} cannot be proved to be the same in another process"
    signature = signature_text(call, survey)
    if signature is None:
        return "an argument cannot be proved to be the same in another process"
    device = f"{abilities.kind}, {abilities.name}, pages of {abilities.page} bytes"
    _, *one = survey.key_with(call.given.arrays, call.nests)
    return Key(
        (
            *_MACHINE,
            ("device", device.encode()),
            ("function", function.encode()),
            ("signature", signature),
            ("what is one object", repr(one).encode()),
            *((f"reads {label}", value) for label, value in parts),
        )
    )
