"""What is guarded inside one thing: tests, one per kind of slot, and their guards.

Every test says in `holds`, as fast as Python can, whether all its slots are as they
were read, and in `difference`, slowly, which one is not.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import call, is_, is_not, itemgetter
from typing import Any, Protocol

from sapwood.tree.guards.arrays import Arrays, layout_of
from sapwood.tree.guards.constants import Contents, constant_of
from sapwood.tree.guards.reach import Row
from sapwood.tree.guards.views import EMPTY, value_text
from sapwood.tree.nests.containers import Identity, constant_key

_NONE = repeat(None)
CHANGING: Any = object()
"""Stands for a value that may change while it stays the same object."""


class Test(Protocol):
    """One thing to be tested in the space that a view opened."""

    def holds(self, space: Any, things: list[Any], found: list[Any], /) -> bool:
        """Return whether all is as it was read.

        Appends new nodes to ``things`` and used arrays to ``found``. Raises
        `LookupError` or `AttributeError` where a slot is gone.
        """
        ...

    def difference(self, space: Any, things: list[Any], /) -> str | None:
        """Name the first thing that is not; appends nodes as `holds` does."""
        ...


@dataclass(frozen=True, slots=True)
class LengthTest:
    """The length of a list or set."""

    path: str
    length: int

    def holds(self, space: Any, _: list[Any], __: list[Any], /) -> bool:
        return len(space) == self.length

    def difference(self, space: Any, _: list[Any], /) -> str | None:
        if len(space) == self.length:
            return None
        return f"len({self.path}) was {self.length}, is {len(space)}"


class KeysTest:
    """All keys of a dict, in their order."""

    __slots__ = ("frozen", "keys", "path")

    def __init__(self, path: str, keys: Sequence[Any]) -> None:
        self.path, self.keys = path, tuple(keys)
        self.frozen = tuple(map(constant_key, keys))

    def holds(self, space: Any, _: list[Any], __: list[Any], /) -> bool:
        if len(space) != len(self.keys):
            return False
        return all(map(is_, space, self.keys)) or (
            tuple(map(constant_key, space)) == self.frozen
        )

    def difference(self, space: Any, _: list[Any], /) -> str | None:
        if self.holds(space, [], []):
            return None
        was, now = (", ".join(map(value_text, keys)) for keys in (self.keys, space))
        return f"the keys of {self.path} were [{was}], are [{now}]"


@dataclass(frozen=True, slots=True)
class LacksTest:
    """Names that were not there; ``prefix`` makes a path of one."""

    names: frozenset[str]
    prefix: str

    def holds(self, space: Mapping[Any, Any], _: list[Any], __: list[Any], /) -> bool:
        return space.keys().isdisjoint(self.names)

    def difference(self, space: Mapping[Any, Any], _: list[Any], /) -> str | None:
        for name in sorted(self.names & space.keys()):
            return f"{self.prefix}{name} was not there, is {value_text(space[name])}"
        return None


class Guard:
    """One slot: path, key, what it is compared by, and what it held, as text."""

    __slots__ = ("frozen", "key", "path", "was")

    def __init__(self, path: str, row: Row) -> None:
        self.path, self.key, self.frozen = path, row.key, row.frozen
        self.was = value_text(row.value)


class _Slots(ABC):
    """Slots of one kind in one space; ``first`` is what their values are tried by."""

    __slots__ = ("first", "frozen", "guards", "pick")

    def __init__(self, guards: Sequence[Guard], first: Iterable[Any]) -> None:
        keys = [guard.key for guard in guards]
        self.pick: Callable[[Any], Sequence[Any]] = itemgetter(*keys)
        if len(keys) == 1:
            (key,) = keys
            self.pick = lambda space: (space[key],)
        self.guards, self.first = tuple(guards), tuple(first)
        self.frozen = tuple(guard.frozen for guard in guards)

    @abstractmethod
    def same(self, number: int, value: Any, things: list[Any]) -> bool:
        """Return whether a slot's value, nothing included, is as it was read."""

    def difference(self, space: Any, things: list[Any], /) -> str | None:
        """Name the first slot that holds something else."""
        for number, guard in enumerate(self.guards):
            try:
                value = space[guard.key]
            except LookupError:
                value = EMPTY
            if not self.same(number, value, things):
                return f"{guard.path} {self.told(number, value)}"
        return None

    def told(self, number: int, value: Any) -> str:
        """Say what a slot held, and what it holds."""
        was, now = self.guards[number].was, value_text(value)
        return f"was {was}, is {'another ' if now == was else ''}{now}"


class ConstantTest(_Slots):
    """Plain values, compared by type and bits."""

    __slots__ = ()

    def __init__(self, guards: Sequence[Guard], rows: Sequence[Row]) -> None:
        super().__init__(guards, map(_unchanging, rows))

    def holds(self, space: Any, _: list[Any], __: list[Any], /) -> bool:
        """Return whether all are the same, at best by identity alone."""
        values = self.pick(space)
        return all(map(is_, values, self.first)) or all(
            constant_of(value) == frozen
            for value, frozen in zip(values, self.frozen, strict=True)
        )

    def same(self, number: int, value: Any, _: list[Any]) -> bool:
        """Return whether type and bits are the same."""
        return constant_of(value) == self.frozen[number]


def _unchanging(row: Row) -> Any:
    return CHANGING if isinstance(row.frozen, Contents) else row.value


def _are(references: Sequence[Callable[[], object]], values: Sequence[Any]) -> bool:
    # A reference to what is gone gives None, which may be just what is there now.
    return all(map(is_, map(call, references), values)) and all(
        map(is_not, values, _NONE)
    )


class OpaqueTest(_Slots):
    """Objects that are not looked into, by identity."""

    __slots__ = ()

    def __init__(self, guards: Sequence[Guard], rows: Sequence[Row]) -> None:
        super().__init__(guards, (_target(row.frozen) for row in rows))

    def holds(self, space: Any, _: list[Any], __: list[Any], /) -> bool:
        """Return whether all are the same objects."""
        return _are(self.first, self.pick(space))

    def same(self, number: int, value: Any, _: list[Any]) -> bool:
        """Return whether it is the same object."""
        return value is not None and self.first[number]() is value


class NodeTest(_Slots):
    """Values that are looked into further: by identity, or by class alone."""

    __slots__ = ()

    def __init__(self, guards: Sequence[Guard], rows: Sequence[Row]) -> None:
        super().__init__(guards, (_target(row.frozen) for row in rows))

    def holds(self, space: Any, things: list[Any], _: list[Any], /) -> bool:
        """Return whether all may be looked into, and note them."""
        for value, target in zip(self.pick(space), self.first, strict=True):
            if type(value) is not target and (
                isinstance(target, type) or target() is not value or value is None
            ):
                return False
            things.append(value)
        return True

    def same(self, number: int, value: Any, things: list[Any]) -> bool:
        """Return whether it may be looked into, and note it."""
        things.append(value)
        target = self.first[number]
        if isinstance(target, type):
            return type(value) is target
        return value is not None and target() is value


def _target(frozen: Any) -> Any:
    return frozen.target if isinstance(frozen, Identity) else frozen


class SeenTest(_Slots):
    """Values that were come by before: by which of the things they are."""

    __slots__ = ()

    def holds(self, space: Any, things: list[Any], _: list[Any], /) -> bool:
        """Return whether all are the same things as before."""
        for value, number in zip(self.pick(space), self.first, strict=True):
            if things[number] is not value:
                return False
        return True

    def same(self, number: int, value: Any, things: list[Any]) -> bool:
        """Return whether it is the same thing as before."""
        return things[self.first[number]] is value


class ArrayTest(_Slots):
    """Arrays, by what they look like; used ones are found for the caller.

    An array object is taken to look the same for as long as it lives. Of used ones the
    caller asks whether it does, and `difference` says where it does not.
    """

    __slots__ = ("arrays", "used")

    def __init__(
        self,
        guards: Sequence[Guard],
        rows: Sequence[Row],
        arrays: Arrays,
        *,
        used: bool = False,
    ) -> None:
        super().__init__(guards, (_reference(row.value) for row in rows))
        self.arrays, self.used = arrays, used

    def holds(self, space: Any, _: list[Any], found: list[Any], /) -> bool:
        """Return whether all look the same."""
        values = self.pick(space)
        if self.used:
            found.extend(values)
        return self._are_alike(values)

    def same(self, number: int, value: Any, _: list[Any]) -> bool:
        """Return whether it looks the same."""
        same = value is not None and self.first[number]() is value
        return (same and not self.used) or self._alike(number, value)

    def told(self, number: int, value: Any) -> str:
        """Say what a slot held, or how the array was changed that it holds still."""
        if value is None or self.first[number]() is not value:
            return super().told(number, value)
        now = layout_of(self.arrays, value)
        return f"had layout {self.frozen[number]}, has {now}"

    def _are_alike(self, values: Sequence[Any]) -> bool:
        return _are(self.first, values) or all(
            map(self._alike, range(len(values)), values)
        )

    def _alike(self, number: int, value: Any) -> bool:
        return (
            self.arrays.is_array(value)
            and layout_of(self.arrays, value) == self.frozen[number]
        )


class TwinTest(ArrayTest):
    """Arrays that are in later slots, too: each is noted, as what is looked into is."""

    __slots__ = ()

    def holds(self, space: Any, things: list[Any], _: list[Any], /) -> bool:
        """Return whether all look the same, and note them."""
        values = self.pick(space)
        things.extend(values)
        return self._are_alike(values)

    def same(self, number: int, value: Any, things: list[Any]) -> bool:
        """Return whether it looks the same, and note it."""
        things.append(value)
        return super().same(number, value, things)


def _reference(array: Any) -> Callable[[], object]:
    try:
        return weakref.ref(array)
    except TypeError:
        return _nothing


def _nothing() -> object:
    return CHANGING
