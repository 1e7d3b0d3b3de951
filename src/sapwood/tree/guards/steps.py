"""Guards as one list of steps, for the case that nothing has changed.

Every test by identity alone: nearly always that is the answer. A step reads or fills
registers, and goes on or ends it all; whoever runs the steps decides nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import ModuleType
from typing import Any, Final, NamedTuple
from weakref import ref

from sapwood import _fast
from sapwood._fast.state import GuardState
from sapwood.tree.guards import checks
from sapwood.tree.guards.aliasing import Apart
from sapwood.tree.guards.asking import Answers
from sapwood.tree.guards.checks import Check, Extent, Guard, Kind
from sapwood.tree.guards.views import Way

_PLAIN: Final = Way()
_SPACE, _VALUE = 0, 1
"""Registers that are used again and again."""


class Op(IntEnum):
    """What a step does with the register ``at``; the rest are the step's operands."""

    ROOT = 0
    """Fill it with ``value()``, which must not be None."""
    OPEN = 1
    """Fill it with ``value(of)``; that rests on what ``ask(of)`` gives, if that is."""
    WHOLE = 2
    """Fill it with ``of``, if that is a plain list, tuple or dict; else as `OPEN`."""
    ATTRIBUTE = 3
    """Fill it with the attribute ``value`` of ``of``."""
    ITEM = 4
    """Fill it with ``of[value]``."""
    CLASS = 5
    """Its class must be ``value``."""
    LENGTH = 6
    """Its length must be the number ``of``."""
    KEYS = 7
    """Its keys must be the tuple ``value``; ``ask(it)`` says so, too."""
    LACKS = 8
    """None of the tuple ``value`` may be a key of it; ``ask(it)`` says so, too."""
    IS = 9
    """It must be ``value``."""
    SAME = 10
    """It must be what ``of`` is."""
    REFERS = 11
    """It must be ``value()``, and not None."""
    LATEST = 12
    """It must be what number ``of`` of the latest references refers to; not None."""
    APART = 13
    """The registers in the tuple ``value`` must hold as many objects."""


class Step(NamedTuple):
    """One step; ``at`` and ``of`` are numbers of registers, if nothing else is said."""

    op: Op
    at: int
    of: int = 0
    value: Any = None
    ask: Callable[[Any], object] | None = None


@dataclass(slots=True)
class Steps:
    """Steps over so many ``registers``; those in ``found`` hold the used arrays.

    ``latest`` are references to the arrays, which others may replace meanwhile;
    ``places`` says of which guard each of them is.
    ``things`` are the registers of what is looked into, as they come by, ``varying``
    those of the roots, and of all that no guard knows.
    """

    steps: list[Step] = field(default_factory=list)
    registers: int = _VALUE + 1
    found: list[int] = field(default_factory=list)
    latest: list[Callable[[], object]] = field(default_factory=list)
    places: list[Guard] = field(default_factory=list)
    things: list[int] = field(default_factory=list)
    varying: list[int] = field(default_factory=list)
    _attributes: dict[tuple[int, str], int] = field(default_factory=dict)

    def root(self, root: Callable[[], object]) -> None:
        """Have the thing come by that a reference gives."""
        self.things.append(self._fresh())
        self.varying.append(self.things[-1])
        self._add(Op.ROOT, self.things[-1], 0, root)

    def check(self, check: Check) -> bool:
        """Add the steps of one check; False where it takes more than steps."""
        thing, extent = self.things[check.thing], check.extent
        way = check.view.way or _PLAIN
        if extent is not None and extent.what == "class":
            self._add(Op.CLASS, thing, 0, extent.was)
            return True
        constant = all(guard.kind is checks.CONSTANT for guard in check.guards)
        if way.getters and constant and extent is None:
            return self._got(check.guards, way)
        space = self._opened(check, thing)
        if extent is not None:
            self._extent(extent, space, way)
        return all(self._slot(guard, space, way) for guard in check.guards)

    def stay_apart(self, places: Iterable[int]) -> None:
        """Add the step that these things are that many objects."""
        things = tuple(self.things[place] for place in places)
        self._add(Op.APART, things[0], 0, things)

    def _fresh(self) -> int:
        self.registers += 1
        return self.registers - 1

    def _add(
        self, op: Op, at: int, of: int = 0, value: Any = None, ask: Any = None
    ) -> None:
        self.steps.append(Step(op, at, of, value, ask))

    def _opened(self, check: Check, thing: int) -> int:
        way, opened = check.view.way, check.view.open
        if way is not None and check.view.within is not None:
            opened = check.view.within.open  # a step of its own reads what is borne
        if way is None or way.getters is not None:
            self._add(Op.OPEN, _SPACE, thing, opened)
        elif way.attributes:
            return thing
        elif way.rests is not None:
            self._add(Op.OPEN, _SPACE, thing, way.into or opened, way.rests)
        elif not way.attribute:
            self._add(Op.WHOLE, _SPACE, thing, opened)
        else:
            held = self._attribute(thing, way.attribute)
            if not way.item:
                return held
            self._add(Op.ITEM, _SPACE, held, way.item)
        return _SPACE

    def _attribute(self, thing: int, name: str) -> int:
        register = self._attributes.get((thing, name))
        if register is None:
            register = self._attributes[thing, name] = self._fresh()
            self._add(Op.ATTRIBUTE, register, thing, name)
        return register

    def _extent(self, extent: Extent, space: int, way: Way) -> None:
        match extent.what:
            case "keys":
                self._add(Op.KEYS, space, 0, extent.was, extent.holds)
            case "lacks":
                self._add(Op.LACKS, space, 0, tuple(extent.was), extent.holds)
            case "length" if not way.attributes:  # of which there are as many as ever
                self._add(Op.LENGTH, space, extent.was)

    def _slot(self, guard: Guard, space: int, way: Way) -> bool:
        kind, first = guard.kind, guard.first
        if first is checks.CHANGING:
            return False
        at = _VALUE if guard.is_known else self._fresh()
        if way.attributes:
            self._add(Op.ATTRIBUTE, at, space, way.attributes[guard.key])
        else:
            self._add(Op.ITEM, at, space, guard.key)
        if way.each:
            self._add(Op.ATTRIBUTE, at, at, way.each)
        if kind.used:
            self.found.append(at)
        if not guard.is_known:
            self.varying.append(at)
        if kind.thing:
            self.things.append(at)
        if kind.array:
            self._add(Op.LATEST, at, len(self.latest))
            self.latest.append(first)
            self.places.append(guard)
        else:
            self._same(at, kind, first)
        return True

    def _same(self, at: int, kind: Kind, first: Any) -> None:
        if kind is checks.CONSTANT:
            self._add(Op.IS, at, 0, first)
        elif kind is checks.SEEN:
            self._add(Op.SAME, at, self.things[first])
        elif isinstance(first, Answers):
            self._add(Op.OPEN, _VALUE, at, first.holds)
            self._add(Op.IS, _VALUE, 0, True)
        else:
            self._add(Op.CLASS if isinstance(first, type) else Op.REFERS, at, 0, first)

    def _got(self, guards: Iterable[Guard], way: Way) -> bool:
        """Add steps for values that getters give; False where one may change."""
        witness = way.witness() if way.witness else None
        known = way.implied() | (witness.keys if witness else frozenset())
        for guard in guards:
            getter = (way.getters or {})[guard.key]
            try:
                value = getter()
            except RuntimeError:
                return False
            if guard.first is checks.CHANGING or way.shown(value) != guard.first:
                return False
            if guard.key not in known:
                self._given(getter, value)
        if witness is not None:
            self._given(witness.holds, True)
        return witness is None or witness.holds()

    def _given(self, getter: Callable[[], Any], value: Any) -> None:
        self._add(Op.ROOT, _VALUE, 0, getter)
        self._add(Op.IS, _VALUE, 0, value)


def assembled(
    roots: Iterable[Callable[[], object]],
    checked: Iterable[Check],
    apart: Sequence[Apart] = (),
) -> Steps | None:
    """Return the steps; None where a value may change and be the same object.

    What has to stay ``apart`` is told by places among things.
    """
    steps = Steps()
    for root in roots:
        steps.root(root)
    if not all(map(steps.check, checked)):
        return None
    for each in apart:
        steps.stay_apart(each.places)
    return steps


PATIENCE: Final = 8
"""Matches before the function is made: most recordings that are used, are used more.
So many, and twice as many each time, that it does not see make it anew."""

_PATIENCE_AT_MOST: Final = 1024


class GuardProgram(GuardState):
    """``read()`` returns the used arrays, or None: the tests have to say.

    ``latest`` are references to the arrays that were seen last. Whoever binds another
    one where one of them was, and of the same looks, puts it in there. ``epoch``
    counts how often that was done for arrays that are used, or the function was made
    anew: it sees more than the tests, and what has changed may stay as it is now.
    """

    __slots__ = (
        *("_assemble", "_left", "_patience", "_places", "_steps", "_varying"),
        *("latest", "read"),
    )

    def __init__(self, assemble: Callable[[], Steps | None]) -> None:
        self._assemble = assemble
        self._left = self._patience = PATIENCE
        self.latest: list[Callable[[], object]] = []
        self._places: list[Guard] = []
        self.epoch = 0
        self.read: Callable[[], list[Any] | None] = self._wait
        self._steps: Steps | None = None
        self._varying: Callable[[], list[Any] | None] | None = None

    def _wait(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._left = self._patience
            self.write()

    def write(self) -> None:
        """Make the function now, unless it is."""
        if self.read != self._wait:
            return
        steps = self._assemble()
        read = None if steps is None else compiled(steps)
        self._steps, self._varying = steps, None
        if steps is None or read is None:
            self.read = _nothing
            return
        self.latest, self._places = steps.latest, steps.places
        self.read = read

    def varying(self) -> list[Any] | None:
        """Return the roots, and all that no guard knows; None as `read`."""
        if self._varying is None and self._steps is not None:
            self._varying = compiled(self._steps, self._steps.varying)
        return None if self._varying is None else self._varying()

    def matched(self, used: Sequence[Any]) -> None:
        """Expect what the tests have just found to be as it was: the used arrays."""
        if used:
            self.renew(used)
        if self.read == self._wait or self.read is _nothing or self.read() is not None:
            return
        self._left -= 1
        if self._left <= 0:
            self._left = self._patience = min(2 * self._patience, _PATIENCE_AT_MOST)
            self.epoch += 1
            self.read = self._wait
            self.write()

    def renew(self, used: Iterable[Any]) -> None:
        """Expect these arrays, which look as the used ones did."""
        self.epoch += 1
        if self.latest:
            places = (n for n, guard in enumerate(self._places) if guard.kind.used)
            for place, array in zip(places, used, strict=True):
                self.latest[place] = ref(array)

    def places(self, path: str, array: Any) -> list[int]:
        """Return which of the `latest` are for this slot and arrays that look so."""
        return [
            place
            for place, guard in enumerate(self._places)
            if guard.path == path and guard.holds(array, (), looks=True)
        ]


def _nothing() -> None:
    return None


def compiled(
    steps: Steps, found: Iterable[int] | None = None
) -> Callable[[], list[Any] | None] | None:
    """Return the steps as a function, or None where there is no C.

    It gives what the used arrays' slots hold, or other registers that are to be
    ``found``; or None: it cannot be told so.
    """
    native = compiler()
    if native is None:
        return None
    read: Callable[[], list[Any] | None] = native.compile_guards(
        tuple(steps.steps),
        tuple(steps.found if found is None else found),
        steps.latest,
        steps.registers,
    )
    return read


def compiler() -> ModuleType | None:
    """Return what makes functions of steps, or None where there is no C."""
    native = _fast.native()
    if native is not None:
        _settle_watching(native)
    return native


@functools.cache
def _settle_watching(native: ModuleType) -> None:
    if not all(_is_told(native, write) for write in _WRITES):
        native.watch_nothing()


class _Probe:
    """Something with an attribute."""

    def __init__(self) -> None:
        self.read: object = None


def _set(probe: _Probe) -> None:
    for value in [0] * 100:  # as often as it takes to be done the quick way
        probe.read = value


_WRITES: Final = (
    _set,
    lambda probe: object.__setattr__(probe, "read", 0),
    lambda probe: delattr(probe, "read"),
    lambda probe: probe.__dict__.update(read=0),
)


def _is_told(native: ModuleType, write: Callable[[_Probe], object]) -> bool:
    """Return whether a look notices that an attribute was written.

    CPython 3.13 does not tell those who watch the dict of an object of its attributes.
    """
    probe = _Probe()
    steps = (
        Step(Op.ROOT, 0, 0, lambda: probe),
        Step(Op.ATTRIBUTE, 1, 0, "__dict__"),
        Step(Op.ITEM, 2, 1, "read"),
        Step(Op.IS, 2, 0, None),
    )
    look = native.compile_guards(steps, (), [], 3)
    seen = [look() is not None for _ in range(3)]
    write(probe)
    return all(seen) and look() is None
