"""Where recordings come from that were not made here, and go that were.

A `Source` is asked once for every group of calls. Whatever goes wrong with it is a
reason; the call is then run as if there were no source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sapwood.driver.api import Abilities
from sapwood.errors import StoreError
from sapwood.store.entries import Absent, Entries
from sapwood.tree.call.integration import Integration
from sapwood.tree.call.signature import Call
from sapwood.tree.format.codec import Archive, decode
from sapwood.tree.guards import Survey
from sapwood.tree.persist.naming import key_of

__all__ = ["Library", "Source"]


class Source(Protocol):
    """Archives by what they were recorded for."""

    def find(self, function: str, call: Call, survey: Survey) -> Archive | str:
        """Return an archive for a call, or why there is none."""
        ...

    def keep(
        self,
        function: str,
        call: Call,
        survey: Survey,
        sections: Mapping[str, bytes],
    ) -> None:
        """Keep an archive for calls like this one, where that can be done."""
        ...


class Library:
    """The archives in a store."""

    def __init__(
        self, entries: Entries, abilities: Abilities, integration: Integration
    ) -> None:
        self.entries, self.abilities, self.integration = entries, abilities, integration

    def find(self, function: str, call: Call, survey: Survey) -> Archive | str:
        """Return an archive from the store, or why there is none."""
        key = key_of(function, call, survey, self.abilities)
        if isinstance(key, str):
            return key
        found = self.entries.find(key)
        if isinstance(found, Absent):
            return str(found)
        try:
            return decode(found, self.integration)
        except StoreError as error:
            return str(error)

    def keep(
        self,
        function: str,
        call: Call,
        survey: Survey,
        sections: Mapping[str, bytes],
    ) -> None:
        """Put an archive into the store; a store that fails is no error."""
        key = key_of(function, call, survey, self.abilities)
        if not isinstance(key, str):
            self.entries.put(key, sections)
