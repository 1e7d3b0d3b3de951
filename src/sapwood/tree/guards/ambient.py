"""The guards of one recording: do all slots that were read still hold the same?

They keep no user object alive: roots are held weakly, everything else is found again
from them. An unchanged slot costs an identity test, most of them in C.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from types import BuiltinFunctionType, CodeType, ModuleType
from typing import Any

from sapwood.tree.guards import checks
from sapwood.tree.guards.aliasing import Aliasing, Apart, kept_apart, twins
from sapwood.tree.guards.checks import (
    Check,
    Difference,
    Extent,
    Guard,
    Kind,
    Reading,
    guard_of,
)
from sapwood.tree.guards.constants import Contents
from sapwood.tree.guards.reach import Inside, Row, Walk
from sapwood.tree.guards.restoring import Edit, put_bytes, put_in
from sapwood.tree.guards.slots import Slot
from sapwood.tree.guards.steps import GuardProgram, assembled
from sapwood.tree.guards.views import GLOBALS, TYPE
from sapwood.tree.nests.containers import Identity


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Ambient:
    """What a recording was made under.

    ``arrays`` are the slots of the arrays that it uses; guarded is what these look
    like, not where they are. One that stays the same object passes: whether these have
    their ``layouts`` still, whoever uses them asks. Two are equal where they guard the
    same values.
    """

    key: Hashable
    arrays: tuple[Slot, ...] = field(compare=False)
    layouts: tuple[Hashable, ...] = field(compare=False, repr=False)
    roots: tuple[Callable[[], object], ...] = field(compare=False, repr=False)
    checks: tuple[Check, ...] = field(compare=False, repr=False)
    program: GuardProgram = field(compare=False, repr=False)
    aliasing: Aliasing = field(compare=False, repr=False)
    apart: tuple[Apart, ...] = field(compare=False, repr=False)

    def holds(self) -> bool:
        """Return whether every guarded slot holds what it held."""
        return self.match() is not None

    def match(self) -> list[Any] | None:
        """Return what the slots in ``arrays`` hold now; None where a guard fails."""
        found = self.program.read()
        if found is None:
            tested = self._tested()
            if tested is not None:
                found = tested.used
                self.program.matched(found)
        return found

    def _tested(self) -> Reading | None:
        """Return what guards come by; None where one fails."""
        roots = [root() for root in self.roots]
        reading = Reading(roots, varying=[*roots])
        return None if self._differs(reading) else reading

    def _differs(self, reading: Reading) -> Difference | None:
        """Return the first difference from what was read, if there is one."""
        if any(thing is None for thing in reading.things):
            return lambda: "an object that the function reached is gone"
        for check in self.checks:
            found = check.differs(reading)
            if found is not None:
                return found
        failed = (each for each in self.apart if not each.holds(reading.things))
        return next((partial(each.told, reading.things) for each in failed), None)

    def picture(self) -> Sequence[Any] | None:
        """Return what `restore` needs to have all be as now; None where a guard fails.

        It keeps that alive.
        """
        found = self.program.varying()
        tested = self._tested() if found is None else None
        return found if tested is None else tested.varying

    def restore(self, picture: Sequence[Any]) -> list[Edit]:
        """Have all slots hold what they held then; return what puts back what they did.

        What cannot be bound stays as it is: guards tell.
        """
        rest, edits = iter(picture), list[Edit]()
        things = [next(rest) for _ in self.roots]
        for check in self.checks:
            held: list[tuple[Any, Any]] = []
            for guard in check.guards:
                value = guard.first if guard.is_known else next(rest)
                held.append((guard.key, value))
                if guard.kind.thing:
                    things.append(value)
                if isinstance(guard.frozen, Contents) and not guard.is_known:
                    edits += put_bytes(value, guard.frozen)
            lacks = check.extent.lacked() if check.extent else ()
            edits += put_in(things[check.thing], check.view, held, lacks)
        return edits

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
        found, aliasing = self._tested(), self.aliasing
        return (
            found is not None
            and aliasing.among(given, found.arrays) == which
            and aliasing.of_nests(containers[: len(nests)], found.things) == nests
        )

    def miss(self) -> str | None:
        """Name the first difference: ``LR was 0.1, is 0.05``; None where all holds."""
        found = self._differs(Reading([root() for root in self.roots], looks=True))
        return None if found is None else found()


def guard(walk: Walk, used: Callable[[Any], bool], key: Hashable) -> Ambient:
    """Return the guards of everything in ``walk``; ``used`` arrays are to be pinned."""
    idle = [row.value for _, row in walk.arrays_found() if not used(row.value)]
    unused = {*map(id, idle)}
    held = walk.held()
    roots = tuple(map(walk.hold, held))
    places: dict[Hashable, int] = {number: place for place, number in enumerate(held)}
    made: list[Check] = []
    slots: list[Slot] = []
    layouts: list[Hashable] = []
    tested: list[Row] = []
    for inside in walk.guarded():
        guards: list[Guard] = []
        for row in inside.rows:
            kind = _kind(row, unused, places)
            path, seen = walk.path(inside, row.key), places.get(_thing(row))
            guards.append(guard_of(path, row, kind, seen, walk.arrays))
            if kind.array:
                tested.append(row)
            if kind.used:
                slots.append(walk.slot(inside, row.key))
                layouts.append(row.frozen)
        extent = extent_of(walk, inside)
        if inside.view is TYPE and guards[0].kind is checks.SEEN:
            # The class was looked into for another thing.
            guards = []
            extent = Extent("class", "", inside.rows[0].value)
        if extent is not None or guards:
            thing = places[inside.node]
            made.append(Check(thing, inside.view, extent, tuple(guards)))
    apart = kept_apart(walk, places)
    return Ambient(
        (key, tuple(slot.path for slot in slots), twins(idle)),
        tuple(slots),
        tuple(layouts),
        roots,
        tuple(made),
        GuardProgram(partial(assembled, roots, made, apart)),
        Aliasing.of(walk, tested, places),
        apart,
    )


def _thing(row: Row) -> Hashable:
    return (id(row.value),) if row.role == "array" else row.node


def _kind(row: Row, unused: AbstractSet[int], places: dict[Hashable, int]) -> Kind:
    if row.role == "constant":
        lasts = type(row.value) in _LASTING or isinstance(row.value, type)
        opaque = isinstance(row.frozen, Identity) and not lasts
        return checks.OPAQUE if opaque else checks.CONSTANT
    if row.role == "tally" and row.node < 0:
        return checks.TALLY
    is_array = row.role == "array"
    if is_array and id(row.value) not in unused:
        return checks.USED
    if _thing(row) in places:
        return checks.SEEN
    places[_thing(row)] = len(places)
    return checks.IDLE if is_array else checks.NODE


_LASTING = {BuiltinFunctionType, CodeType, ModuleType}
"""Classes of what may be kept alive, as may classes that are not looked into."""


def extent_of(walk: Walk, inside: Inside) -> Extent | None:
    """Return what besides single slots is guarded of what one view held, if any is."""
    path, view, rows = walk.nodes[inside.node].path, inside.view, inside.rows
    if inside.lacks:
        return Extent("lacks", "" if view is GLOBALS else f"{path}.", inside.lacks)
    if view.extent == "length":
        return Extent("length", path, len(rows))
    if view.extent == "keys" or (view.extent == "names" and inside.lacks is None):
        return Extent("keys", path, tuple(row.key for row in rows))
    return None
