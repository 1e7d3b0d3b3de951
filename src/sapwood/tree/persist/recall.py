"""What one function has from its source of recordings, and gives to it.

The source may be slow, so it is asked and given to outside the device's lock; what
it said is written down in the specialization under the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from sapwood.tree.call.integration import Integration
from sapwood.tree.call.miss import Miss, Why
from sapwood.tree.call.signature import Call
from sapwood.tree.choose.specialization import Specialization
from sapwood.tree.format.codec import Archive, encode
from sapwood.tree.guards import Slot, Survey
from sapwood.tree.node.node import Node
from sapwood.tree.persist.source import Source

__all__ = ["Recall"]


_Ready: TypeAlias = tuple[Call, Survey, Mapping[str, bytes]]


class Recall:
    """One function's side of a `Source`; without one it knows nothing."""

    def __init__(
        self, function: str, source: Source | None, integration: Integration
    ) -> None:
        self.function, self.source, self.integration = function, source, integration
        self._ready: deque[_Ready] = deque()

    def ask(
        self, call: Call, survey: Survey, specialization: Specialization | None
    ) -> Archive | str | None:
        """Return an archive for a call, why there is none, or None: not to be asked."""
        if self.source is None or (specialization is not None and specialization.asked):
            return None
        return self.source.find(self.function, call, survey)

    def note(
        self, specialization: Specialization, answer: Archive | str | None
    ) -> tuple[Miss, ...]:
        """Write down what `ask` returned; return why there is no archive."""
        if answer is None:
            return ()
        specialization.asked = True
        if isinstance(answer, str):
            return (Miss(Why.ABSENT, answer),)
        specialization.archive = answer
        return ()

    def pack(
        self,
        call: Call,
        survey: Survey,
        specialization: Specialization,
        node: Node,
        bound: Sequence[Slot],
        sharing: Any,
    ) -> None:
        """Make a new recording ready to be kept, if it is one that can be.

        The first says all: those to come differ in roles and pages only.
        """
        if self.source is None or node.ferries or specialization.nodes != [node]:
            return
        sections = encode(node, bound, sharing, self.integration)
        if not isinstance(sections, str):
            self._ready.append((call, survey, sections))

    def flush(self) -> None:
        """Give the source what is ready for it."""
        while self.source is not None and self._ready:
            self.source.keep(self.function, *self._ready.popleft())
