"""What differs between two surveys: what a function wrote in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sapwood.tree.guards.slots import Slot

__all__ = ["BoundArray", "Change", "Draw", "undo_bound"]


@dataclass(frozen=True, slots=True)
class Change:
    """Something that the function wrote, and that no replay would repeat.

    ``path`` names it, ``text`` says what became of it, ``remedy`` what to do instead.
    """

    path: str
    text: str
    remedy: ClassVar[str] = (
        "Return the value, keep it in a device array, or write it outside the graphed "
        "function"
    )

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Draw(Change):
    """Random numbers that were drawn on the host, or a seed that was set there."""

    remedy: ClassVar[str] = (
        "Draw from rt.generator(seed), whose state is on the device, or draw outside "
        "the graphed function and pass the number as an array"
    )


@dataclass(frozen=True, slots=True, eq=False)
class BoundArray(Change):
    """An array bound to a slot, which every replay can do again.

    ``old`` is what the slot held, `EMPTY` if nothing; ``new`` is the array, or None
    where the function took an array away. Only ``slot`` is worth keeping: the rest
    keeps arrays alive.
    """

    slot: Slot
    old: Any
    new: Any
    _arguments: Mapping[str, object] = field(repr=False)

    def undo(self) -> None:
        """Bind the slot to what it held before."""
        self.slot.write(self.old, self._arguments)

    def write(self, value: object, arguments: Mapping[str, object]) -> None:
        """Bind the slot to ``value``, in a call with these arguments."""
        self.slot.write(value, arguments)


def undo_bound(changes: Sequence[Change]) -> None:
    """Unbind, the last first, every array that was bound to a slot."""
    for change in reversed(changes):
        if isinstance(change, BoundArray):
            change.undo()
