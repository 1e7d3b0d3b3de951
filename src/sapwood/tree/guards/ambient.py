"""The guards of one recording: do all slots that were read still hold the same?

They keep no user object alive: roots are held weakly, everything else is found again
from them. An unchanged slot costs an identity test, most of them in C.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from types import BuiltinFunctionType, CodeType, ModuleType
from typing import Any

from sapwood.tree.guards import checks
from sapwood.tree.guards.aliasing import Aliasing, Apart, kept_apart, twins
from sapwood.tree.guards.checks import Check, Extent, Kind, Slots, Test, guard_of
from sapwood.tree.guards.reach import Inside, Row, Walk
from sapwood.tree.guards.slots import Slot
from sapwood.tree.guards.steps import GuardProgram, assembled
from sapwood.tree.guards.views import GLOBALS, TYPE
from sapwood.tree.nests.containers import Identity
from sapwood.tree.nests.contents import Items


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Ambient:
    """What a recording was made under.

    ``arrays`` are the slots of the arrays that it uses; guarded is what these look
    like, not where they are. One that stays the same object passes: whether these have
    their ``layouts`` still, whoever uses them asks. ``used`` says which they are of
    all arrays that tests come by. Two are equal where they guard the same values.
    """

    key: Hashable
    arrays: tuple[Slot, ...] = field(compare=False)
    layouts: tuple[Hashable, ...] = field(compare=False, repr=False)
    used: tuple[bool, ...] = field(compare=False, repr=False)
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
                found = [*compress(tested[1], self.used)]
                self.program.matched(found)
        return found

    def _tested(self) -> tuple[list[Any], list[Any]] | None:
        """Return all things and arrays that tests come by; None where one fails."""
        things: list[Any] = [root() for root in self.roots]
        arrays: list[Any] = []
        if any(thing is None for thing in things):
            return None
        try:
            for check in self.checks:
                space = check.open(things[check.thing])
                for test in check.tests:
                    if not test.holds(space, things, arrays):
                        return None
        except checks.GONE:
            # A slot is not there any more, or is being written by another thread.
            return None
        apart = all(each.holds(things) for each in self.apart)
        return (things, arrays) if apart else None

    def overgrown(self) -> list[tuple[Any, Items]]:
        """Return lists and dicts that hold more than they did, or in another order.

        And what they held, where their slots hold what these did.
        """
        found: list[tuple[Any, Items]] = []
        things: list[Any] = [root() for root in self.roots]
        for check in self.checks:
            space = check.open(things[check.thing])
            for test in check.tests:
                was = test.contents(space) if isinstance(test, Extent) else None
                if was is not None:
                    found.append((space, was))
                elif not test.holds(space, things, []):
                    return found
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
        tested = self._tested()
        if tested is None:
            return False
        things, arrays = tested
        return (
            self.aliasing.among(given, arrays) == which
            and self.aliasing.of_nests(containers[: len(nests)], things) == nests
        )

    def miss(self) -> str | None:
        """Name the first difference: ``LR was 0.1, is 0.05``; None where all holds."""
        things: list[Any] = [root() for root in self.roots]
        if any(thing is None for thing in things):
            return "an object that the function reached is gone"
        every: tuple[Check | Apart, ...] = (*self.checks, *self.apart)
        found = (each.difference(things) for each in every)
        return next((text for text in found if text is not None), None)


def guard(walk: Walk, used: Callable[[Any], bool], key: Hashable) -> Ambient:
    """Return the guards of everything in ``walk``; ``used`` arrays are to be pinned."""
    idle = [row.value for _, row in walk.arrays_found() if not used(row.value)]
    alike = twins(idle)
    several = {id(idle[first]) for k, first in enumerate(alike) if first != k}
    unused = dict.fromkeys(map(id, idle), checks.IDLE)
    unused |= dict.fromkeys(several, checks.TWIN)
    held = walk.held()
    roots = tuple(map(walk.hold, held))
    places: dict[Hashable, int] = {number: place for place, number in enumerate(held)}
    made: list[Check] = []
    slots: list[Slot] = []
    tested: list[tuple[Row, Kind]] = []
    for inside in walk.guarded():
        kinds: dict[Kind, list[Row]] = {}
        # Tests come by nodes first, then by arrays.
        for row in sorted(inside.rows, key=_is_array):
            kinds.setdefault(_kind(row, unused, places), []).append(row)
        tests: list[Test] = [*extents(walk, inside)]
        thing, way = places[inside.node], inside.view.way
        opened: Callable[[Any], Any] = inside.view.open
        if inside.view is TYPE and checks.SEEN in kinds:
            # The class was looked into for another thing.
            (row,), kinds, opened = inside.rows, {}, type
            tests = [Extent("class", "", row.value)]
        for kind in filter(kinds.__contains__, checks.KINDS):
            rows = kinds[kind]
            if kind.array:
                tested += [(row, kind) for row in rows]
            guards = [
                guard_of(walk.path(inside, row.key), row, kind, places.get(_thing(row)))
                for row in rows
            ]
            tests.append(Slots(kind, guards, walk.arrays))
        slots += [walk.slot(inside, row.key) for row in kinds.get(checks.USED, ())]
        if tests:
            made.append(Check(thing, opened, way, tuple(tests)))
    apart = kept_apart(walk, places)
    return Ambient(
        (key, tuple(slot.path for slot in slots), alike),
        tuple(slots),
        tuple(row.frozen for row, kind in tested if kind.used),
        tuple(kind.used for _, kind in tested),
        roots,
        tuple(made),
        GuardProgram(partial(assembled, roots, made, apart)),
        Aliasing.of(walk, [row for row, _ in tested], places),
        apart,
    )


def _is_array(row: Row) -> bool:
    return row.role == "array"


def _thing(row: Row) -> Hashable:
    return (id(row.value),) if _is_array(row) else row.node


def _kind(row: Row, unused: Mapping[int, Kind], places: dict[Hashable, int]) -> Kind:
    if row.role == "constant":
        lasts = type(row.value) in _LASTING or isinstance(row.value, type)
        opaque = isinstance(row.frozen, Identity) and not lasts
        return checks.OPAQUE if opaque else checks.CONSTANT
    if row.role == "tally" and row.node < 0:
        return checks.TALLY
    kind = unused.get(id(row.value), checks.USED) if _is_array(row) else checks.NODE
    if not kind.thing:
        return kind
    if _thing(row) in places:
        return checks.SEEN
    places[_thing(row)] = len(places)
    return kind


_LASTING = {BuiltinFunctionType, CodeType, ModuleType}
"""Classes of what may be kept alive, as may classes that are not looked into."""


def extents(walk: Walk, inside: Inside) -> list[Extent]:
    """Return what besides single slots is guarded of what one view held."""
    path, view, rows = walk.nodes[inside.node].path, inside.view, inside.rows
    if inside.lacks:
        prefix = "" if view is GLOBALS else f"{path}."
        return [Extent("lacks", prefix, inside.lacks)]
    if view.extent == "length":
        return [Extent("length", path, len(rows))]
    if view.extent == "keys" or (view.extent == "names" and inside.lacks is None):
        return [Extent("keys", path, tuple(row.key for row in rows))]
    return []
