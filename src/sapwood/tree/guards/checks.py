"""What is guarded inside one thing: its extent, and a row for each of its slots.

One walk over the rows says whether all is as it was read, and of the first that is not,
which it is; `told` says that in words.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import is_
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from sapwood.tree.guards.asking import Answers
from sapwood.tree.guards.constants import Contents, constant_of
from sapwood.tree.guards.frameworks import Arrays, layout_of
from sapwood.tree.guards.reach import Row
from sapwood.tree.guards.views import EMPTY, View, value_text
from sapwood.tree.nests.containers import Identity, constant_key

CHANGING: Any = object()
"""Stands for a value that may change while it stays the same object."""

_GONE: Final = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What looking for a slot raises that is not there any more."""


Difference: TypeAlias = Callable[[], str]
"""What is not as it was; it says in words how it differs."""


@dataclass(slots=True)
class Reading:
    """What guards come by, in their order: ``things``, and ``arrays``, ``used`` or not.

    With ``looks``, used arrays have to look as they did, too. ``varying`` are the
    values that no guard knows.
    """

    things: list[Any]
    arrays: list[Any] = field(default_factory=list)
    used: list[Any] = field(default_factory=list)
    looks: bool = False
    varying: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Extent:
    """What a space ``was``: its length, its keys in their order, names that it lacks.

    Or the class of a thing that was looked into for another one. ``path`` is the
    thing's, or what comes before a name.
    """

    what: Literal["class", "keys", "lacks", "length"]
    path: str
    was: Any

    def holds(self, space: Any) -> bool:
        """Return whether that is as it was read."""
        was = self.was
        match self.what:
            case "lacks":
                return bool(space.keys().isdisjoint(was))
            case "length":
                return bool(len(space) == was)
            case "keys":
                return len(space) == len(was) and (
                    all(map(is_, space, was))
                    or [*map(constant_key, space)] == [*map(constant_key, was)]
                )
            case "class":
                return space[0] is was

    def lacked(self) -> Collection[str] | None:
        """Return the names that were not there; None: all that are not known."""
        if self.what in ("keys", "length"):
            return None
        return self.was if self.what == "lacks" else ()

    def told(self, space: Any) -> str:
        """Say what was and is."""
        path, was = self.path, self.was
        match self.what:
            case "lacks":
                # Another thread may have taken it away again.
                name = min(was & space.keys(), default="a name")
                now = value_text(space.get(name, EMPTY))
                return f"{path}{name} was not there, is {now}"
            case "length":
                return f"len({path}) was {was}, is {len(space)}"
            case "keys":
                old, new = (", ".join(map(value_text, keys)) for keys in (was, space))
                return f"the keys of {path} were [{old}], are [{new}]"
            case "class":
                return f"a {was.__qualname__} is a {space[0].__qualname__} now"


def _is_object(value: Any, reference: Callable[[], object], _: object) -> bool:
    # A reference to what is gone gives None, which may be just what is there now.
    return reference() is value and value is not None


def _is_node(value: Any, first: Any, _: object) -> bool:
    return type(value) is first or (
        not isinstance(first, type) and _is_object(value, first, _)
    )


def _is_such_a_tally(value: Any, first: type | Answers, _: object) -> bool:
    return first.holds(value) if isinstance(first, Answers) else type(value) is first


def _is_equal(value: Any, frozen: Hashable, _: Arrays) -> bool:
    return constant_of(value) == frozen


def _looks_alike(value: Any, frozen: Hashable, arrays: Arrays) -> bool:
    return arrays.is_array(value) and layout_of(arrays, value) == frozen


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """How the slots of one kind are tried.

    ``same(value, first, things)`` tells whether it is the object that was; for one that
    is not, ``alike(value, frozen, arrays)`` whether it is as good.

    An ``array`` is taken to look the same for as long as it lives. Of ``used`` ones the
    caller asks whether it does, and a `Reading` that ``looks``. ``thing``: what is
    there is noted, as later rows come by it again.
    """

    same: Callable[[Any, Any, Sequence[Any]], bool]
    alike: Callable[[Any, Hashable, Arrays], bool] = lambda *_: False
    array: bool = False
    used: bool = False
    thing: bool = False


CONSTANT: Final = Kind(lambda value, first, _: value is first, _is_equal)
"""Plain values, compared by type and bits."""
OPAQUE: Final = Kind(_is_object)
"""Objects that are not looked into, by identity."""
NODE: Final = Kind(_is_node, thing=True)
"""Values that are looked into further: by identity, or by class alone."""
SEEN: Final = Kind(lambda value, place, things: value is things[place])
"""Values that were come by before: by which of the things they are."""
TALLY: Final = Kind(_is_such_a_tally)
"""Numbers that are only added to, by class or by what they answer."""
IDLE: Final = Kind(_is_object, _looks_alike, array=True, thing=True)
"""Arrays that no recording uses; in later slots they are `SEEN`."""
USED: Final = Kind(_is_object, _looks_alike, array=True, used=True)


class Guard(NamedTuple):
    """One slot: what its value is tried by ``first``, and then compared by.

    ``was`` is what it held, as text.
    """

    path: str
    key: Any
    kind: Kind
    first: Any
    frozen: Hashable
    was: str
    arrays: Arrays

    @property
    def is_known(self) -> bool:
        """Whether the value is the same, or as good, wherever the guard holds."""
        return self.kind is CONSTANT and self.first is not CHANGING

    def holds(self, value: Any, things: Sequence[Any], looks: bool) -> bool:
        """Return whether a slot's value, nothing included, is as it was read."""
        kind = self.kind
        if kind.same(value, self.first, things) and not (looks and kind.used):
            return True
        return kind.alike(value, self.frozen, self.arrays)

    def told(self, value: Any) -> str:
        """Say what the slot held and holds, or how the array was changed in it."""
        if self.kind.array and _is_object(value, self.first, None):
            now = layout_of(self.arrays, value)
            return f"{self.path} had layout {self.frozen}, has {now}"
        now = value_text(value)
        another = "another " if now == self.was else ""
        return f"{self.path} was {self.was}, is {another}{now}"


def guard_of(
    path: str, row: Row, kind: Kind, seen: int | None, arrays: Arrays
) -> Guard:
    """Return the guard of a slot; ``seen`` is which of the things it holds, if any."""
    first: Any = row.value
    if kind is SEEN:
        first = seen
    elif kind.array:
        first = _reference(row.value)
    elif kind is not CONSTANT:
        first = row.frozen.target if isinstance(row.frozen, Identity) else row.frozen
    elif isinstance(row.frozen, Contents):
        first = CHANGING
    return Guard(path, row.key, kind, first, row.frozen, value_text(row.value), arrays)


def _reference(array: Any) -> Callable[[], object]:
    try:
        return weakref.ref(array)
    except TypeError:
        return lambda: CHANGING


@dataclass(frozen=True, slots=True)
class Check:
    """What a view shows of one thing, by its place among those that are come by."""

    thing: int
    view: View
    extent: Extent | None
    guards: tuple[Guard, ...]

    def differs(self, reading: Reading) -> Difference | None:
        """Return the first difference from what was read, if there is one."""
        thing = reading.things[self.thing]
        try:
            space = self.view.open(thing)
            if self.extent is not None and not self.extent.holds(space):
                return partial(self.extent.told, space)
            return self._slot(space, reading)
        except _GONE:
            # A slot is not there any more, or is being written by another thread.
            kind = type(thing).__qualname__
            return lambda: f"a {kind} cannot be looked into as before"

    def _slot(self, space: Any, reading: Reading) -> Difference | None:
        things, looks = reading.things, reading.looks
        for guard in self.guards:
            try:
                value = space[guard.key]
            except LookupError:
                value = EMPTY
            if guard.kind.array:
                reading.arrays.append(value)
            if guard.kind.used:
                reading.used.append(value)
            if guard.kind.thing:
                things.append(value)
            if guard.kind is not CONSTANT or guard.first is CHANGING:
                reading.varying.append(value)
            if not guard.holds(value, things, looks):
                return partial(guard.told, value)
        return None
