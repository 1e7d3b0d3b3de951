"""The guards of one recording: do all slots that were read still hold the same?

They keep no user object alive: roots are held weakly, everything else is found again
from them. An unchanged slot costs an identity test, most of them in C.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, ModuleType
from typing import Any

from sapwood.tree.guards.aliasing import Aliasing, Apart, kept_apart, twins
from sapwood.tree.guards.checks import (
    ArrayTest,
    ConstantTest,
    Guard,
    KeysTest,
    LacksTest,
    LengthTest,
    NodeTest,
    OpaqueTest,
    SeenTest,
    Test,
    TwinTest,
)
from sapwood.tree.guards.reach import Inside, Row, Walk
from sapwood.tree.guards.slots import Slot
from sapwood.tree.guards.steps import GuardProgram
from sapwood.tree.guards.views import GLOBALS, TYPE, Space, Way
from sapwood.tree.nests.containers import Identity

_GONE = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What looking for a slot raises that is not there any more."""


@dataclass(frozen=True, slots=True)
class Check:
    """The tests inside one thing; ``thing`` is its place among those come by.

    ``cls``: what its class has to be, where that was looked into for another thing.
    ``open`` and ``way`` are the view's.
    """

    thing: int
    cls: type | None
    open: Callable[[Any], Space]
    way: Way | None
    tests: tuple[Test, ...]


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
            found = self._tested()
            if found is not None:
                self.program.matched(found)
        return found

    def _tested(self) -> list[Any] | None:
        things: list[Any] = []
        found: list[Any] = []
        for root in self.roots:
            thing = root()
            if thing is None:
                return None
            things.append(thing)
        try:
            for check in self.checks:
                thing = things[check.thing]
                if check.cls is not None and type(thing) is not check.cls:
                    return None
                space = check.open(thing)
                for test in check.tests:
                    if not test.holds(space, things, found):
                        return None
        except _GONE:
            # A slot is not there any more, or is being written by another thread.
            return None
        return found if all(each.holds(things) for each in self.apart) else None

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
        reached = self._reached()
        if reached is None:
            return False
        arrays, things = reached
        return (
            self.aliasing.among(given, arrays) == which
            and self.aliasing.of_nests(containers[: len(nests)], things) == nests
        )

    def _reached(self) -> tuple[list[Any], list[Any]] | None:
        things: list[Any] = [root() for root in self.roots]
        found: list[Any] = []
        try:
            for check in self.checks:
                space = check.open(things[check.thing])
                for test in check.tests:
                    if isinstance(test, ArrayTest):
                        found += test.pick(space)
                    if isinstance(test, NodeTest | TwinTest):
                        test.holds(space, things, [])
        except _GONE:
            return None
        return found, things

    def miss(self) -> str | None:
        """Name the first difference: ``LR was 0.1, is 0.05``; None where all holds."""
        things: list[Any] = [root() for root in self.roots]
        if any(thing is None for thing in things):
            return "an object that the function reached is gone"
        for check in self.checks:
            thing = things[check.thing]
            if check.cls is not None and type(thing) is not check.cls:
                return f"a {check.cls.__qualname__} is a {type(thing).__qualname__} now"
            try:
                difference = _difference(check, thing, things)
            except _GONE:
                return f"a {type(thing).__qualname__} cannot be looked into as before"
            if difference is not None:
                return difference
        joined = (each.difference(things) for each in self.apart)
        return next((text for text in joined if text is not None), None)


def _difference(check: Check, thing: Any, things: list[Any]) -> str | None:
    space = check.open(thing)
    found = (test.difference(space, things) for test in check.tests)
    return next((each for each in found if each is not None), None)


def guard(walk: Walk, used: Callable[[Any], bool], key: Hashable) -> Ambient:
    """Return the guards of everything in ``walk``; ``used`` arrays are to be pinned."""
    idle = [
        row.value
        for inside in walk.guarded()
        for row in inside.rows
        if row.role == "array" and not used(row.value)
    ]
    alike = twins(idle)
    several = {id(idle[first]) for k, first in enumerate(alike) if first != k}
    unused = dict.fromkeys(map(id, idle), "idle") | dict.fromkeys(several, "twin")
    places: dict[Hashable, int] = {}
    roots: list[Callable[[], object]] = []
    for number in walk.held():
        places[number] = len(roots)
        roots.append(walk.hold(number))
    checks: list[Check] = []
    slots: list[Slot] = []
    layouts: list[Hashable] = []
    tested: list[Row] = []
    for inside in walk.guarded():
        kinds: dict[str, list[Row]] = {}
        # Tests come by nodes first, then by arrays.
        for row in sorted(inside.rows, key=_is_array):
            kinds.setdefault(_kind(row, unused, places), []).append(row)
        pinned = kinds.get("pinned", ())
        slots += [walk.slot(inside, row.key) for row in pinned]
        layouts += [row.frozen for row in pinned]
        tested += [row for kind in _TESTED for row in kinds.get(kind, ())]
        checks += _check(walk, inside, kinds, places)
    key = key, tuple(slot.path for slot in slots), alike
    asked = Aliasing.of(walk, tested, places), kept_apart(walk, places)
    guards = tuple(roots), tuple(checks)
    program = GuardProgram(*guards, asked[1])
    return Ambient(key, tuple(slots), tuple(layouts), *guards, program, *asked)


_TESTED = ("twin", "idle", "pinned")
"""Kinds of arrays, in the order in which tests come by them."""


def _is_array(row: Row) -> bool:
    return row.role == "array"


def _thing(row: Row) -> Hashable:
    return (id(row.value),) if _is_array(row) else row.node


def _kind(row: Row, unused: Mapping[int, str], places: dict[Hashable, int]) -> str:
    kind = unused.get(id(row.value), "pinned") if _is_array(row) else row.role
    if kind in {"node", "twin"}:
        if _thing(row) in places:
            return "seen"
        places[_thing(row)] = len(places)
    if kind != "constant":
        return kind
    lasts = type(row.value) in _LASTING or isinstance(row.value, type)
    if isinstance(row.frozen, Identity) and not lasts:
        return "opaque"
    return "constant"


_LASTING = {BuiltinFunctionType, CodeType, ModuleType}
"""Classes of what may be kept alive, as may classes that are not looked into."""


def _check(
    walk: Walk,
    inside: Inside,
    kinds: dict[str, list[Row]],
    places: Mapping[Hashable, int],
) -> Iterator[Check]:
    thing, view, cls = places[inside.node], inside.view, None
    if view is TYPE and "seen" in kinds:
        cls, kinds = type(walk.nodes[inside.node].value), {}
    tests = (*_extents(walk, inside), *_tests(walk, inside, kinds, places))
    if tests or cls is not None:
        yield Check(thing, cls, view.open, view.way, tests)


def _extents(walk: Walk, inside: Inside) -> Iterator[Test]:
    node, view = walk.nodes[inside.node], inside.view
    if inside.lacks:
        yield LacksTest(inside.lacks, "" if view is GLOBALS else f"{node.path}.")
    elif view.extent == "length":
        yield LengthTest(node.path, len(inside.rows))
    elif view.extent == "keys" or (view.extent == "names" and inside.lacks is None):
        yield KeysTest(node.path, [row.key for row in inside.rows])


def _tests(
    walk: Walk,
    inside: Inside,
    kinds: dict[str, list[Row]],
    places: Mapping[Hashable, int],
) -> Iterator[Test]:
    arrays = walk.arrays
    guards = {
        kind: [Guard(walk.path(inside, row.key), row) for row in rows]
        for kind, rows in kinds.items()
    }
    if "constant" in kinds:
        yield ConstantTest(guards["constant"], kinds["constant"])
    if "opaque" in kinds:
        yield OpaqueTest(guards["opaque"], kinds["opaque"])
    if "node" in kinds:
        yield NodeTest(guards["node"], kinds["node"])
    if "twin" in kinds:
        yield TwinTest(guards["twin"], kinds["twin"], arrays)
    if "seen" in kinds:
        yield SeenTest(guards["seen"], [places[_thing(row)] for row in kinds["seen"]])
    if "idle" in kinds:
        yield ArrayTest(guards["idle"], kinds["idle"], arrays, used=False)
    if "pinned" in kinds:
        yield ArrayTest(guards["pinned"], kinds["pinned"], arrays, used=True)
