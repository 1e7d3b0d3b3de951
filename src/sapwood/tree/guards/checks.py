"""What is guarded inside one thing: its extent, and slots by kind.

Tests say in `holds`, as fast as Python can, whether all is as it was read, and in
`difference`, slowly, what is not.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import call, is_, is_not, itemgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from sapwood.tree.guards.arrays import Arrays, layout_of
from sapwood.tree.guards.asking import Answers
from sapwood.tree.guards.constants import Contents, constant_of
from sapwood.tree.guards.reach import Row
from sapwood.tree.guards.views import EMPTY, Way, value_text
from sapwood.tree.nests.containers import Identity, constant_key
from sapwood.tree.nests.contents import Items

_NONE = repeat(None)
CHANGING: Any = object()
"""Stands for a value that may change while it stays the same object."""

GONE: Final = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What looking for a slot raises that is not there any more."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What a space ``was``: its length, its keys in their order, names that it lacks.

    Or the class of a thing that was looked into for another one. ``path`` is the
    thing's, or what comes before a name.
    """

    what: Literal["class", "keys", "lacks", "length"]
    path: str
    was: Any

    def holds(self, space: Any, _: object = None, __: object = None) -> bool:
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
                return space is was

    def contents(self, space: Any) -> Items | None:
        """Return what there was in a list or dict that may hold more by now.

        None where that is not known, or is what there is.
        """
        was = self.was
        if self.what == "length" and isinstance(space, list | deque):
            return ((), [*space][:was]) if len(space) > was else None
        if self.what in ("keys", "lacks") and isinstance(space, dict):
            keys = was if self.what == "keys" else [k for k in space if k not in was]
            if not self.holds(space) and all(key in space for key in keys):
                return [*keys], [space[key] for key in keys]
        return None

    def difference(self, space: Any, _: object) -> str | None:
        """Say what was and is, if that is not the same."""
        path, was = self.path, self.was
        if self.holds(space):
            return None
        match self.what:
            case "lacks":
                name = min(was & space.keys())
                return f"{path}{name} was not there, is {value_text(space[name])}"
            case "length":
                return f"len({path}) was {was}, is {len(space)}"
            case "keys":
                old, new = (", ".join(map(value_text, keys)) for keys in (was, space))
                return f"the keys of {path} were [{old}], are [{new}]"
            case "class":
                return f"a {was.__qualname__} is a {space.__qualname__} now"


class Guard(NamedTuple):
    """One slot: what its value is tried by ``first``, and then compared by.

    ``was`` is what it held, as text.
    """

    path: str
    key: Any
    first: Any
    frozen: Hashable
    was: str


def _are_objects(
    values: Sequence[Any], references: Sequence[Callable[[], object]], _: object
) -> bool:
    # A reference to what is gone gives None, which may be just what is there now.
    return all(map(is_, map(call, references), values)) and all(
        map(is_not, values, _NONE)
    )


def _are_nodes(values: Sequence[Any], firsts: Sequence[Any], _: object) -> bool:
    for value, first in zip(values, firsts, strict=True):
        if type(value) is not first and (
            isinstance(first, type) or first() is not value or value is None
        ):
            return False
    return True


def _is_such_a_tally(value: Any, first: type | Answers) -> bool:
    return first.holds(value) if isinstance(first, Answers) else type(value) is first


def _are_equal(value: Any, frozen: Hashable, _: Arrays) -> bool:
    return constant_of(value) == frozen


def _look_alike(value: Any, frozen: Hashable, arrays: Arrays) -> bool:
    return arrays.is_array(value) and layout_of(arrays, value) == frozen


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """How the slots of one kind are tested.

    ``are(values, firsts, things)`` tells whether these are the objects that were; for
    one that is not, ``alike(value, frozen, arrays)`` whether it is as good.

    An ``array`` is taken to look the same for as long as it lives. Of ``used`` ones the
    caller asks whether it does, and `Slots.difference` says where it does not.
    ``thing``: what is there is noted, as checks or tests come by it again.
    """

    are: Callable[[Sequence[Any], Sequence[Any], list[Any]], bool]
    alike: Callable[[Any, Hashable, Arrays], bool] = lambda *_: False
    array: bool = False
    used: bool = False
    thing: bool = False


CONSTANT: Final = Kind(
    lambda values, firsts, _: all(map(is_, values, firsts)), _are_equal
)
"""Plain values, compared by type and bits."""
OPAQUE: Final = Kind(_are_objects)
"""Objects that are not looked into, by identity."""
NODE: Final = Kind(_are_nodes, thing=True)
"""Values that are looked into further: by identity, or by class alone."""
TWIN: Final = Kind(_are_objects, _look_alike, array=True, thing=True)
"""Arrays that are in later slots, too."""
SEEN: Final = Kind(
    lambda values, places, things: all(
        map(is_, values, map(things.__getitem__, places))
    )
)
"""Values that were come by before: by which of the things they are."""
TALLY: Final = Kind(
    lambda values, firsts, _: all(map(_is_such_a_tally, values, firsts))
)
"""Numbers that are only added to, by class or by what they answer."""
IDLE: Final = Kind(_are_objects, _look_alike, array=True)
USED: Final = Kind(_are_objects, _look_alike, array=True, used=True)

KINDS: Final = CONSTANT, OPAQUE, TALLY, NODE, TWIN, SEEN, IDLE, USED
"""In the order in which slots are tested."""


def guard_of(path: str, row: Row, kind: Kind, seen: int | None) -> Guard:
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
    return Guard(path, row.key, first, row.frozen, value_text(row.value))


def _reference(array: Any) -> Callable[[], object]:
    try:
        return weakref.ref(array)
    except TypeError:
        return lambda: CHANGING


class Slots:
    """Slots of one kind in one space."""

    __slots__ = ("_arrays", "_firsts", "_pick", "guards", "kind")

    def __init__(self, kind: Kind, guards: Sequence[Guard], arrays: Arrays) -> None:
        keys = [guard.key for guard in guards]
        self._pick: Callable[[Any], Sequence[Any]] = itemgetter(*keys)
        if len(keys) == 1:
            (key,) = keys
            self._pick = lambda space: (space[key],)
        self.kind, self.guards, self._arrays = kind, tuple(guards), arrays
        self._firsts = tuple(guard.first for guard in guards)

    def holds(self, space: Any, things: list[Any], found: list[Any]) -> bool:
        """Return whether all are as they were read, at best by identity alone.

        Appends to ``things`` what is noted, and arrays to ``found``. Raises one of
        `GONE` where a slot is gone.
        """
        kind, values = self.kind, self._pick(space)
        if kind.array:
            found += values
        if kind.thing:
            things += values
        return kind.are(values, self._firsts, things) or all(
            kind.alike(value, guard.frozen, self._arrays)
            for value, guard in zip(values, self.guards, strict=True)
        )

    def difference(self, space: Any, things: list[Any]) -> str | None:
        """Name the first slot that holds something else; notes as `holds` does."""
        for guard in self.guards:
            try:
                value = space[guard.key]
            except LookupError:
                value = EMPTY
            if self.kind.thing:
                things.append(value)
            if not self.same(guard, value, things):
                return f"{guard.path} {self._told(guard, value)}"
        return None

    def same(self, guard: Guard, value: Any, things: list[Any]) -> bool:
        """Return whether a slot's value, nothing included, is as it was read."""
        same = self.kind.are((value,), (guard.first,), things)
        return (same and not self.kind.used) or self.kind.alike(
            value, guard.frozen, self._arrays
        )

    def _told(self, guard: Guard, value: Any) -> str:
        """Say what a slot held and holds, or how the array was changed in it."""
        if self.kind.array and _are_objects((value,), (guard.first,), None):
            return f"had layout {guard.frozen}, has {layout_of(self._arrays, value)}"
        now = value_text(value)
        return f"was {guard.was}, is {'another ' if now == guard.was else ''}{now}"


Test: TypeAlias = Extent | Slots


@dataclass(frozen=True, slots=True)
class Check:
    """The tests inside one thing, by its place among those that are come by.

    ``open`` and ``way`` are the view's.
    """

    thing: int
    open: Callable[[Any], Any]
    way: Way | None
    tests: tuple[Test, ...]

    def difference(self, things: list[Any]) -> str | None:
        """Name the first difference, if there is one; notes as tests do."""
        thing = things[self.thing]
        try:
            space = self.open(thing)
            found = (test.difference(space, things) for test in self.tests)
            return next((each for each in found if each is not None), None)
        except GONE:
            return f"a {type(thing).__qualname__} cannot be looked into as before"
