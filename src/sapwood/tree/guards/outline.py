"""The outline of a walk: all that it found, without values that may be somebody's.

With it come the steps that read every slot again, and what a walk decided by.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from types import BuiltinFunctionType, CodeType
from typing import Any, NamedTuple

from sapwood.tree.guards.accessors import accessors, deciders
from sapwood.tree.guards.ambient import Check
from sapwood.tree.guards.checks import (
    Guard,
    KeysTest,
    LacksTest,
    LengthTest,
    NodeTest,
    ReadTest,
    SeenTest,
    Test,
)
from sapwood.tree.guards.progress import PROGRESS
from sapwood.tree.guards.reach import Inside, Node, Row, Walk, is_book
from sapwood.tree.guards.scope import Accessor
from sapwood.tree.guards.starts import Start
from sapwood.tree.guards.steps import Steps, assembled
from sapwood.tree.guards.views import View
from sapwood.tree.nests.weakly import weakly

__all__ = [
    "Asked",
    "Doubt",
    "Frame",
    "Outline",
    "Plain",
    "Shown",
    "is_settled",
    "outlined",
]

_SETTLED = {bool, bytes, complex, float, int, str, type(None), type(...), range}
_SETTLED |= {BuiltinFunctionType, CodeType, type}


def is_settled(value: object) -> bool:
    """Return whether a value that is not looked into stays as it is."""
    cls = type(value)
    if cls is tuple or cls is frozenset:
        return all(map(is_settled, value))  # type: ignore[call-overload]
    return cls in _SETTLED


class Plain(NamedTuple):
    """A slot with a plain value; ``at`` is its place among all that is read."""

    at: int
    value: Any
    frozen: Hashable


class Doubt(NamedTuple):
    """A slot whose value may be another while it stays the same object.

    ``book``: it is one of the interpreter's own.
    """

    at: int
    frozen: Hashable
    book: bool


class Shown(NamedTuple):
    """A guarded slot with an array, which ``view`` shows in a node; ``at`` as above."""

    at: int
    node: int
    view: View
    key: Any


class Asked(NamedTuple):
    """A node that is to be asked how it is opened; ``at`` as in `Plain`."""

    at: int
    accessors: tuple[Accessor, ...]


class Frame(NamedTuple):
    """An `Inside` without values; ``filled`` says which row is which of all reads."""

    node: int
    view: View
    rows: Sequence[Row]
    lacks: frozenset[str] | None
    named: bool
    filled: Sequence[tuple[int, int]]


class Outline(NamedTuple):
    """All that a walk found, without values that may be somebody's.

    ``things`` says which of all reads each node is; ``shut`` are the starts that are
    not looked into, ``walked`` the others. ``arrays`` are the reads that give arrays,
    which look like ``layouts``.
    """

    begins: Sequence[tuple[str, Callable[[], object], str | None]]
    shut: Sequence[int]
    walked: Sequence[int]
    nodes: Sequence[Node]
    things: Sequence[int]
    classes: Sequence[Callable[[], object]]
    frames: Sequence[Frame]
    plain: Sequence[Plain]
    doubts: Sequence[Doubt]
    asked: Sequence[Asked]
    arrays: Sequence[int]
    layouts: Sequence[Hashable]
    shown: Sequence[Shown]
    slots: int


def outlined(walk: Walk, begins: Sequence[Start]) -> tuple[Outline, Steps] | None:
    """Return what a walk that began so found, and steps that read it all again.

    What is read are all slots but those with nodes, and then all nodes. None where
    such steps could not tell what a walk would find.
    """
    if walk.apart is None:
        return None
    nodes, insides = walk.nodes[: walk.apart[0]], walk.insides[: walk.apart[1]]
    if not (
        all(node.covered for node in walk.nodes[walk.apart[0] :])
        and all(map(_is_readable, insides))
    ):
        return None
    draft = _Draft(walk, nodes)
    frames = [draft.frame(inside) for inside in insides]
    if not draft.decide():
        return None
    program = assembled(draft.roots, draft.checks)
    if program is None:
        return None
    program.found += program.things
    return draft.outline(begins, frames), program


def _is_readable(inside: Inside) -> bool:
    # Where an iterator is may not show; keys may run code of the user's.
    return inside.view is not PROGRESS and all(is_settled(r.key) for r in inside.rows)


class _Draft:
    """An outline in the making; ``places`` are those of nodes among all things."""

    def __init__(self, walk: Walk, nodes: Sequence[Node]) -> None:
        self.walk, self.nodes = walk, nodes
        starts = [n for n, node in enumerate(nodes) if node.step is None]
        self.places = {number: place for place, number in enumerate(starts)}
        self.roots = [weakly(nodes[number].value) for number in starts]
        self.checks: list[Check] = []
        self.reads = 0
        self.plain: list[Plain] = []
        self.doubts: list[Doubt] = []
        self.arrays: list[tuple[int, Row]] = []
        self.shown: list[Shown] = []
        self.asked: list[int] = []

    def frame(self, inside: Inside) -> Frame:
        """Add the checks that read a view again, and return it without values."""
        place = self.places[inside.node]
        known, new, other = [], [], []
        filled: list[tuple[int, int]] = []
        rows: list[Row] = []
        for number, row in enumerate(inside.rows):
            if row.role != "node":
                other.append(row)
                filled += self._read(number, inside, row)
            elif row.node in self.places:
                known.append(row)
            else:
                self.places[row.node] = len(self.places)
                new.append(row)
            kept = row.value if self._is_plain(row) else None
            rows.append(Row(row.key, kept, row.role, row.frozen, row.node))
        tests = (*_extents(inside), *self._tests(known, new, other))
        view = inside.view
        self.checks.append(Check(place, None, view.open, view.way, tests))
        return Frame(inside.node, view, rows, inside.lacks, inside.named, filled)

    @staticmethod
    def _is_plain(row: Row) -> bool:
        return row.role == "constant" and is_settled(row.value)

    def _read(self, number: int, inside: Inside, row: Row) -> Iterator[tuple[int, int]]:
        at, self.reads = self.reads, self.reads + 1
        if self._is_plain(row):
            self.plain.append(Plain(at, row.value, row.frozen))
            return
        yield number, at
        if row.role == "array":
            self.arrays.append((at, row))
            if inside.view.guarded:
                self.shown.append(Shown(at, inside.node, inside.view, row.key))
        else:
            book = is_book(inside.view, row.key)
            self.doubts.append(Doubt(at, row.frozen, book))

    def _tests(
        self, known: Sequence[Row], new: Sequence[Row], other: Sequence[Row]
    ) -> Iterator[Test]:
        if other:
            yield ReadTest(_guards(other))
        if new:
            yield NodeTest(_guards(new), new)
        if known:
            yield SeenTest(_guards(known), [self.places[row.node] for row in known])

    def decide(self) -> bool:
        """Add checks of what decides how nodes are opened; false if that changed."""
        reach = self.walk.reach
        for number, node in enumerate(self.nodes):
            views = deciders(node.value, reach)
            if views is None:
                self.asked.append(number)
                continue
            place = self.places[number]
            self.checks += [
                Check(place, None, view.open, view.way, (_decider(view, node),))
                for view in views
            ]
            if tuple(accessors(node.value, reach)) != node.accessors:
                return False
        return True

    def _opens(self, value: Any) -> bool:
        return any(True for _ in accessors(value, self.walk.reach))

    def outline(self, begins: Sequence[Start], frames: Sequence[Frame]) -> Outline:
        """Return all that was found."""
        nodes = self.nodes
        things = [self.reads + self.places[number] for number in range(len(nodes))]
        shut = [k for k, each in enumerate(begins) if not self._opens(each.value)]
        return Outline(
            begins=[(each.path, weakly(each.value), each.parameter) for each in begins],
            shut=shut,
            walked=[k for k in range(len(begins)) if k not in shut],
            nodes=[_without_value(node) for node in nodes],
            things=things,
            classes=[weakly(type(node.value)) for node in nodes],
            frames=[_with_nodes(frame, things) for frame in frames],
            plain=self.plain,
            doubts=self.doubts,
            asked=[
                Asked(things[number], nodes[number].accessors) for number in self.asked
            ],
            arrays=[at for at, _ in self.arrays],
            layouts=[row.frozen for _, row in self.arrays],
            shown=self.shown,
            slots=sum(len(frame.rows) for frame in frames),
        )


def _guards(rows: Sequence[Row]) -> list[Guard]:
    return [Guard("", row) for row in rows]


def _extents(inside: Inside) -> Iterator[Test]:
    if inside.lacks is not None:
        yield LacksTest(inside.lacks, "")
    elif inside.view.way is not None and inside.view.way.each:
        # Whose keys these are is said by the view that shows them whole.
        return
    elif inside.named:
        yield KeysTest("", [row.key for row in inside.rows])
    else:
        yield LengthTest("", len(inside.rows))


def _decider(view: View, node: Node) -> Test:
    space = view.open(node.value)
    if view.extent == "names":
        return KeysTest("", list(space))
    return LengthTest("", len(space))


def _with_nodes(frame: Frame, things: Sequence[int]) -> Frame:
    nodes = [
        (number, things[row.node])
        for number, row in enumerate(frame.rows)
        if row.role == "node"
    ]
    return frame._replace(filled=[*frame.filled, *nodes])


def _without_value(node: Node) -> Node:
    return replace(node, value=None)
