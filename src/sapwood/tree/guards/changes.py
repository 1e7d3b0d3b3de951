"""What a function wrote, and which of that every replay writes again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sapwood.tree.guards.slots import Item, Slot


@dataclass(frozen=True, slots=True)
class Change:
    """Something that the function wrote, and that no replay would repeat.

    ``path`` names it, ``text`` says what became of it, ``remedy`` what to do instead.
    ``name`` is what code calls it, "" where it has no name there.
    """

    path: str
    text: str
    name: str = field(default="", kw_only=True, repr=False)
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


@dataclass(frozen=True, slots=True)
class Filled(Change):
    """Something where nothing or None was: what later calls may find ready."""


@dataclass(frozen=True, slots=True, eq=False)
class Repeated(Change):
    """A write that every replay makes again: ``new`` to ``slot``, which held ``old``.

    Only ``slot`` is worth keeping: the rest keeps arrays alive.
    """

    slot: Slot
    old: Any
    new: Any
    _arguments: Mapping[str, object] = field(repr=False)

    def undo(self) -> None:
        """Have the slot hold what it held before."""
        self.slot.bind(self.old, self._arguments)

    def now(self) -> Any:
        """Return what is to be there, or what it comes to."""
        return self.new

    @property
    def item(self) -> Item | None:
        """The nest that it is a leaf of, if it is of any."""
        return self.slot.item


@dataclass(frozen=True, slots=True, eq=False)
class BoundArray(Repeated):
    """An array bound to a slot.

    ``old`` is `EMPTY` if there was nothing, ``new`` is None where the function took an
    array away.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Assigned(Repeated):
    """A plain value in the place of another, as by ``self.turn = not self.turn``.

    Or what a `cached_property` has computed, where nothing was. The new value follows
    from what is guarded, and the old one is guarded, too: calls that find it there
    assign the same.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Rebound(Repeated):
    """A leaf of a new container in the place of ``old``, which is as it was.

    Nobody had the new one before. The leaf is ``alike`` where ``old`` had the same form
    and it is an array, or the plain value that was there.
    """

    alike: bool

    def undo(self) -> None:
        """Have the slot hold what it held before: once for all leaves."""
        if self.slot.leaf == 0:
            Repeated.undo(self)

    def place(self) -> Hashable:
        """Return what tells which leaf of what it is, whichever way leads there."""
        return self.slot.place(self._arguments), self.slot.leaf


@dataclass(frozen=True, slots=True, eq=False)
class Added(Repeated):
    """What was added to a number, or appended to a list.

    ``number`` is which item of the list it is. Of a number it is below 0: the sums are
    made in turn, from -1 down.
    """

    number: int = -1

    def now(self) -> Any:
        """Return an item of a list, or the sum that a number has come to."""
        return self.new if self.number >= 0 else self.slot.read(self._arguments)

    def undo(self) -> None:
        """Have the slot hold what it held before."""
        if self.number < 0:
            Repeated.undo(self)
        else:
            del self.slot.read(self._arguments)[self.number :]

    def is_shared(self, items: dict[int, Item]) -> bool:
        """Note its nest among others; return whether that is appended twice."""
        item = self.item
        if item is None:
            return False
        return any(items.setdefault(n, item) is not item for n in item.numbers)

    def place(self) -> Hashable:
        """Return what tells where that is, whichever way leads there."""
        if self.number >= 0:
            held = self.slot.read(self._arguments)
            return id(held), self.number, self.slot.leaf
        return self.slot.place(self._arguments), self.number


def undo_bound(changes: Sequence[Change]) -> None:
    """Undo, the last first, every change that replays make again."""
    for change in reversed(changes):
        if isinstance(change, Repeated):
            change.undo()
