"""The guards of one recording: do all slots that were read still hold the same?

They keep no user object alive: roots are held weakly, everything else is found again
from them. An unchanged slot costs an identity test, made in C.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from types import BuiltinFunctionType, CodeType, ModuleType
from typing import Any

from sapwood import _fast
from sapwood._fast.state import GuardState
from sapwood.tree.guards import reach
from sapwood.tree.guards.aliasing import Aliasing, kept_apart, twins
from sapwood.tree.guards.arrays import Arrays, layout_of
from sapwood.tree.guards.constants import Contents, constant_of
from sapwood.tree.guards.reach import Inside, Walk
from sapwood.tree.guards.slots import Slot
from sapwood.tree.guards.table import (
    GONE,
    Get,
    Registers,
    Row,
    Test,
    contents,
    difference,
    holds,
    read,
)
from sapwood.tree.guards.views import EMPTY, GLOBALS, TYPE, Way, value_text
from sapwood.tree.nests.containers import Identity, constant_key
from sapwood.tree.nests.contents import Items

_CHANGING: Any = object()
"""Stands for a value that may change while it stays the same object."""

_VALUE, _SPACE = 0, 1
"""The registers of what is not asked for again, and of what was opened last."""


class Ambient(GuardState):
    """What a recording was made under.

    ``arrays`` are the slots of the arrays that it uses; guarded is what these look
    like, not where they are. One that stays the same object passes: whether these have
    their ``layouts`` still, whoever uses them asks. Two are equal where they guard the
    same values.

    ``latest`` are references to all arrays that rows come by; to those that are used,
    as they were seen last. Whoever binds another one where one of them was, and of the
    same looks, puts it in there. ``epoch`` counts how often another was found where a
    used one was. ``native`` reads all rows in C, where that was built.
    """

    __slots__ = (
        "__weakref__",
        "_adapter",
        "_count",
        "_found",
        "_rows",
        "aliasing",
        "arrays",
        "key",
        "latest",
        "layouts",
        "native",
        "roots",
    )

    def __init__(self, made: _Table, key: Hashable, aliasing: Aliasing) -> None:
        self._adapter, self._rows = made.walk.arrays, tuple(made.rows)
        self._found, self._count = tuple(made.found), made.registers
        self.arrays, self.layouts = tuple(made.slots), tuple(made.layouts)
        self.roots, self.latest = tuple(made.roots), made.latest
        self.key, self.aliasing = key, aliasing
        self.epoch = 0
        self.native: Callable[..., list[Any] | None] | None = None
        native = _fast.native()
        if native is not None:
            self.native = native.compile_guards(
                self._rows, self._found, self.latest, self._count, EMPTY
            )

    def __eq__(self, other: object) -> bool:
        """Return whether another guards the same values."""
        return isinstance(other, Ambient) and self.key == other.key

    def __hash__(self) -> int:
        """Return the same for those that are equal."""
        return hash(self.key)

    def holds(self) -> bool:
        """Return whether every guarded slot holds what it held."""
        return self.match() is not None

    def match(self) -> list[Any] | None:
        """Return what the slots in ``arrays`` hold now; None where a guard fails."""
        if self.native is not None:
            return self.native(self, True)
        registers = self._registers()
        if self._first_difference(registers) is not None:
            return None
        return [registers[register] for register in self._found]

    def read(self) -> list[Any] | None:
        """Return what `match` does, if the very same objects are there, and C says so.

        It then means that no array is another one than at the last `match`.
        """
        return None if self.native is None else self.native(self)

    def same(self, number: int, value: Any) -> bool:
        """Return whether what a row has read is as good as what it expects.

        Another array that is used is what the row expects from now on.
        """
        row, arrays = self._rows[number], self._adapter
        match row.test:
            case Test.IS:
                return constant_of(value) == row.frozen
            case Test.LATEST if _looks(arrays, value) == row.frozen:
                if row.at in self._found and self.latest[row.value]() is not value:
                    self.latest[row.value] = _reference(value)
                    self.epoch += 1
                return True
            case Test.KEYS:
                keys = [*map(constant_key, value)]
                return keys == [*map(constant_key, row.value)]
            case Test.LACKS:
                return bool(value.keys().isdisjoint(row.frozen))
        return False

    def overgrown(self) -> list[tuple[Any, Items]]:
        """Return lists and dicts that hold more than they did, or in another order.

        And what they held, where their slots hold what these did.
        """
        found: list[tuple[Any, Items]] = []
        registers = self._registers()
        for number, row in enumerate(self._rows):
            value = read(row, registers)
            was = contents(row, value)
            try:
                if was is not None:
                    found.append((value, was))
                elif not (
                    holds(row, value, registers, self.latest)
                    or self.same(number, value)
                ):
                    break
            except GONE:
                break
        return found

    def are_those(
        self,
        given: Sequence[Any],
        containers: Sequence[Any],
        which: tuple[int, ...],
        nests: tuple[int, ...],
    ) -> bool:
        """Return whether those are one that were, by what slots hold now.

        ``which`` and ``nests`` as in `AmbientKey`, of a call's arrays and containers.
        """
        if not (which or nests):
            return True
        registers, nested = self._registers(), containers[: len(nests)]
        if self._first_difference(registers) is not None:
            return False
        arrays = [registers[row.at] for row in self._rows if row.test is Test.LATEST]
        return (
            self.aliasing.among(given, arrays) == which
            and self.aliasing.of_nests(nested, registers) == nests
        )

    def miss(self) -> str | None:
        """Name the first difference: ``LR was 0.1, is 0.05``; None where all holds."""
        registers = self._registers()
        row = self._first_difference(registers, looks=True)
        if row is None:
            return None
        value = registers[row.at]
        if row.test is Test.LATEST and holds(row, value, registers, self.latest):
            now = layout_of(self._adapter, value)
            return f"{row.path} had layout {row.frozen}, has {now}"
        return difference(row, value, registers)

    def places(self, path: str, array: Any) -> list[int]:
        """Return which of the `latest` are for this slot and arrays that look so."""
        looks = _looks(self._adapter, array)
        return [
            row.value
            for row in self._rows
            if row.test is Test.LATEST and (row.path, row.frozen) == (path, looks)
        ]

    def _registers(self) -> Registers:
        return [None] * self._count

    def _first_difference(
        self, registers: Registers, *, looks: bool = False
    ) -> Row | None:
        """Fill registers; return the first row that does not hold any more, if any.

        ``looks``: ask of used arrays that are the same objects how they look, too.
        """
        for number, row in enumerate(self._rows):
            value = read(row, registers)
            asks = looks and row.test is Test.LATEST and row.at in self._found
            try:
                known = holds(row, value, registers, self.latest) and not asks
                if not (known or self.same(number, value)):
                    return row
            except GONE:
                return row
        return None


def _looks(arrays: Arrays, value: Any) -> Hashable:
    return layout_of(arrays, value) if arrays.is_array(value) else _CHANGING


def _reference(array: Any) -> Callable[[], object]:
    try:
        return weakref.ref(array)
    except TypeError:
        return lambda: _CHANGING


class _Table:
    """The table that is made of a walk, whose ``used`` arrays are to be pinned."""

    def __init__(self, walk: Walk, used: Callable[[Any], bool]) -> None:
        self.walk, self._used = walk, used
        self.rows: list[Row] = []
        self.registers = _SPACE + 1
        self.things: dict[Hashable, int] = {}
        """The registers of nodes, by number, and of arrays that are not used."""
        self.found: list[int] = []
        self.roots: list[Callable[[], object]] = []
        self.latest: list[Callable[[], object]] = []
        self.slots: list[Slot] = []
        self.layouts: list[Hashable] = []
        self.arrays: list[reach.Row] = []
        self._held: dict[tuple[int, str], int] = {}

    def root(self, number: int) -> None:
        """Have rows begin with a node that is held weakly."""
        self.things[number] = self._fresh()
        self.roots.append(self.walk.hold(number))
        self.rows.append(Row(Get.CALL, 0, self.roots[-1], "", self.things[number]))

    def inside(self, inside: Inside) -> None:
        """Have all guarded that was found in a thing."""
        view, thing = inside.view, self.things[inside.node]
        way = view.way or Way()
        direct = way.getters is not None or way.attributes or view is TYPE
        if not inside.rows and (direct or self._extent(inside)[0] is Test.FOUND):
            return
        space = thing if direct else self._opened(inside, thing)
        # Nodes come first: of arrays, it is asked which of those they are.
        for row in sorted(inside.rows, key=lambda row: row.role == "array"):
            if view is TYPE:
                self._slot(inside, row, Get.TYPE, thing, None)
            elif way.getters is not None:
                self._slot(inside, row, Get.CALL, 0, way.getters[row.key])
            elif way.attributes:
                name = way.attributes[row.key]
                self._slot(inside, row, Get.ATTRIBUTE, thing, name)
            else:
                self._slot(inside, row, Get.ITEM, space, row.key, way.each)

    def apart(self) -> None:
        """Have things stay apart that were, if the function may ask."""
        for places, paths in kept_apart(self.walk, self.things):
            self.rows.append(
                Row(Get.KEPT, 0, None, "", places[0], Test.APART, places, paths)
            )

    def _fresh(self) -> int:
        self.registers += 1
        return self.registers - 1

    def _extent(self, inside: Inside) -> tuple[Test, Any, str, Hashable]:
        """Return what is guarded of a thing besides single slots, as a row ends."""
        path, view, rows = self.walk.nodes[inside.node].path, inside.view, inside.rows
        if inside.lacks:
            prefix = "" if view is GLOBALS else f"{path}."
            return Test.LACKS, tuple(inside.lacks), prefix, inside.lacks
        if view.extent == "length":
            return Test.LENGTH, len(rows), path, None
        if view.extent == "keys" or (view.extent == "names" and inside.lacks is None):
            return Test.KEYS, tuple(row.key for row in rows), path, None
        return Test.FOUND, None, path, None

    def _opened(self, inside: Inside, thing: int) -> int:
        """Return the register of what a view opens a thing into."""
        view, way, end = inside.view, inside.view.way, self._extent(inside)
        if way is None:
            self.rows.append(Row(Get.OPEN, thing, view.open, "", _SPACE, *end))
        elif not way.attribute:
            self.rows.append(Row(Get.WHOLE, thing, view.open, "", _SPACE, *end))
        elif way.item:
            held = self._attribute(thing, way.attribute)
            self.rows.append(Row(Get.ITEM, held, way.item, "", _SPACE, *end))
        else:
            return self._attribute(thing, way.attribute, end)
        return _SPACE

    def _attribute(self, thing: int, name: str, end: Sequence[Any] = ()) -> int:
        """Return the register of an attribute, which one row reads for all."""
        register, get = self._held.get((thing, name)), Get.KEPT
        if register is None:
            register, get = self._fresh(), Get.ATTRIBUTE
            self._held[thing, name] = register
        if end or get is Get.ATTRIBUTE:
            self.rows.append(Row(get, thing, name, "", register, *end))
        return register

    def _slot(
        self,
        inside: Inside,
        row: reach.Row,
        get: Get,
        of: int,
        key: Any,
        each: str = "",
    ) -> None:
        test, value, at = self._expected(row)
        path, was = self.walk.path(inside, row.key), value_text(row.value)
        if test is Test.LATEST and self._used(row.value):
            self.found.append(at)
            self.slots.append(self.walk.slot(inside, row.key))
            self.layouts.append(row.frozen)
        end = test, value, path, row.frozen, was
        self.rows.append(Row(get, of, key, each, at, *end))

    def _expected(self, row: reach.Row) -> tuple[Test, Any, int]:
        """Return how a slot's value is tested, and the register that it goes to."""
        if row.role == "constant":
            lasts = type(row.value) in _LASTING or isinstance(row.value, type)
            if isinstance(row.frozen, Identity) and not lasts:
                return Test.REFERS, row.frozen.target, _VALUE
            changes = isinstance(row.frozen, Contents)
            return Test.IS, _CHANGING if changes else row.value, _VALUE
        thing: Hashable = (id(row.value),) if row.role == "array" else row.node
        if thing in self.things:
            return Test.SAME, self.things[thing], _VALUE
        at = self._fresh()
        if row.role == "array":
            if not self._used(row.value):
                self.things[thing] = at
            self.arrays.append(row)
            self.latest.append(_reference(row.value))
            return Test.LATEST, len(self.latest) - 1, at
        self.things[thing] = at
        if isinstance(row.frozen, Identity):
            return Test.REFERS, row.frozen.target, at
        return Test.CLASS, row.frozen, at


_LASTING = {BuiltinFunctionType, CodeType, ModuleType}
"""Classes of what may be kept alive, as may classes that are not looked into."""


def guard(walk: Walk, used: Callable[[Any], bool], key: Hashable) -> Ambient:
    """Return the guards of everything in ``walk``; ``used`` arrays are to be pinned."""
    made = _Table(walk, used)
    for number in walk.held():
        made.root(number)
    for inside in walk.guarded():
        made.inside(inside)
    made.apart()
    idle = [row.value for _, row in walk.arrays_found() if not used(row.value)]
    paths = tuple(slot.path for slot in made.slots)
    aliasing = Aliasing.of(walk, made.arrays, made.things)
    return Ambient(made, (key, paths, twins(idle)), aliasing)
