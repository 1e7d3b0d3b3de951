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
from sapwood.tree.guards.checks import (
    Check,
    Difference,
    Extent,
    Guard,
    Kind,
    Reading,
    guard_of,
)
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
        reading = Reading([root() for root in self.roots])
        return None if self._differs(reading) else (reading.things, reading.arrays)

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

    def overgrown(self) -> list[tuple[Any, Items]]:
        """Return lists and dicts that hold more than they did, or in another order.

        And what they held, where their slots hold what these did.
        """
        found: list[tuple[Any, Items]] = []
        self._differs(Reading([root() for root in self.roots], grown=found))
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
        found = self._differs(Reading([root() for root in self.roots], looks=True))
        return None if found is None else found()


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
        extent = extent_of(walk, inside)
        thing, way = places[inside.node], inside.view.way
        opened: Callable[[Any], Any] = inside.view.open
        if inside.view is TYPE and checks.SEEN in kinds:
            # The class was looked into for another thing.
            (row,), kinds, opened = inside.rows, {}, type
            extent = Extent("class", "", row.value)
        guards: list[Guard] = []
        for kind in filter(kinds.__contains__, checks.KINDS):
            tested += [(row, kind) for row in kinds[kind] if kind.array]
            guards += [
                guard_of(
                    *(walk.path(inside, row.key), row, kind, places.get(_thing(row))),
                    walk.arrays,
                )
                for row in kinds[kind]
            ]
        slots += [walk.slot(inside, row.key) for row in kinds.get(checks.USED, ())]
        if extent is not None or guards:
            made.append(Check(thing, opened, way, extent, tuple(guards)))
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
