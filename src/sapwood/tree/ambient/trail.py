"""The trail of a walk: by it, a walk that would find the same slots is made at once.

All slots that the walk read are read again, in C, and what it decided by is asked
again. Where nothing says otherwise, a new walk would come to the same slots, and theirs
are the values. A trail keeps no more alive than guards do.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import call, is_, itemgetter
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from sapwood.errors import StaleOutput
from sapwood.tree.ambient.guards import Ambient
from sapwood.tree.ambient.openings import openings
from sapwood.tree.ambient.outline import (
    Doubt,
    Frame,
    Outline,
    Plain,
    is_settled,
    outlined,
)
from sapwood.tree.ambient.reach import (
    Arrays,
    Base,
    Inside,
    Node,
    Row,
    Start,
    Walk,
    constant_of,
    starts,
)
from sapwood.tree.ambient.scope import Reach
from sapwood.tree.ambient.steps_in_c import in_c
from sapwood.tree.containers import constant_key

__all__ = ["Trail"]


class Trail:
    """What one walk came to, and the steps that lead there again.

    ``look`` gives the values of all slots and nodes, or None. ``key`` is the survey's.
    ``ambients`` are the guards made of it that somebody has, by which arrays are used.
    """

    def __init__(
        self,
        outline: Outline,
        look: Callable[[], list[Any] | None],
        walk: Walk,
        key: Hashable,
    ) -> None:
        self.outline, self.key, self._look = outline, key, look
        self.ambients: WeakValueDictionary[tuple[bool, ...], Ambient]
        self.ambients = WeakValueDictionary()
        self._latest: Callable[[], Base | None] = lambda: None
        reach = walk.reach
        self._names, self._builtins = frozenset(reach.names), frozenset(reach.builtins)
        self._flags = reach.dynamic, reach.advances
        self._own, self._built = frozenset(reach.own), WeakSet(reach.built)
        self._size = reach.size()
        self._pick = _picker([each.at for each in outline.plain])
        self._plain = tuple(each.value for each in outline.plain)
        self._things = _picker(outline.things)
        self._found = _picker(outline.arrays)

    @classmethod
    def of(
        cls,
        walk: Walk,
        key: Hashable,
        fn: Callable[..., Any],
        arguments: Mapping[str, object],
    ) -> Trail | None:
        """Return the trail of a walk; None where a glance would not tell enough."""
        begins, _ = starts(fn, arguments, walk.arrays, Reach())
        found = outlined(walk, begins)
        look = None if found is None else in_c(found[1])
        return None if found is None or look is None else cls(found[0], look, walk, key)

    def again(
        self, fn: Callable[..., Any], arguments: Mapping[str, object], arrays: Arrays
    ) -> Walk | None:
        """Return what a walk would find now; None where that is to be walked."""
        reach = self._reach()
        begins, home = starts(fn, arguments, arrays, reach)
        if reach.size() != self._size or reach.own != self._own:
            return None
        if not self._begin_alike(begins, reach):
            return None
        values = self._look()
        if values is None or not self._are_those(self._things(values), begins):
            return None
        if not self._agree(values, arrays, reach):
            return None
        walk = Walk.upon(self._base(values), arrays, reach, home)
        walk.into(arguments)
        apart = len(self.outline.nodes)
        if reach.size() != self._size or not all(n.covered for n in walk.nodes[apart:]):
            return None
        return walk

    def _reach(self) -> Reach:
        names, builtins = set(self._names), set(self._builtins)
        return Reach(names, builtins, *self._flags, set(self._built))

    def _begin_alike(self, begins: Sequence[Start], reach: Reach) -> bool:
        known = self.outline.begins
        return (
            len(known) == len(begins)
            and all(
                path == now.path and reference() is now.value and name == now.parameter
                for (path, reference, name), now in zip(known, begins, strict=True)
            )
            and all(_is_shut(begins[i].value, reach) for i in self.outline.shut)
        )

    def _are_those(self, things: Sequence[Any], begins: Sequence[Start]) -> bool:
        """Return whether things are of their classes, each another, starts among them.

        What is come by twice is one node.
        """
        outline, known = self.outline, {*map(id, things)}
        return (
            all(map(is_, map(type, things), map(call, outline.classes)))
            and len(known) == len(things)
            and all(id(begins[number].value) in known for number in outline.walked)
        )

    def _agree(self, values: Sequence[Any], arrays: Arrays, reach: Reach) -> bool:
        """Return whether a walk would make of these values what it made of others."""
        outline, plain, found = self.outline, self._pick(values), self._found(values)
        return (
            all(map(is_, plain, self._plain))
            or all(map(_is_equal, plain, outline.plain))
        ) and (
            all(map(arrays.is_array, found))
            and _layouts(arrays, found) == outline.layouts
            and self._is_undoubted(values, arrays, reach)
            and all(
                tuple(openings(values[each.at], reach)) == each.openings
                for each in outline.asked
            )
            and reach.size() == self._size
        )

    def _is_undoubted(
        self, values: Sequence[Any], arrays: Arrays, reach: Reach
    ) -> bool:
        """Return whether values that may change within are as they were."""
        sure: set[Hashable] = set()
        for doubt in self.outline.doubts:
            value = values[doubt.at]
            asked = id(value), doubt.frozen
            if asked not in sure:
                if not _is_as_it_was(value, doubt, arrays, reach):
                    return False
                sure.add(asked)
        return True

    def _base(self, values: Sequence[Any]) -> Base:
        """Return the values in their slots: those of a walk that is still there."""
        base = self._latest()
        if base is None or not all(map(is_, values, base.values)):
            base = _filled(self.outline, values)
            self._latest = weakref.ref(base)
        return base


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: [values[place] for place in places]


def _layouts(arrays: Arrays, found: Sequence[Any]) -> list[Hashable] | None:
    try:
        return [*map(arrays.layout, found)]
    except StaleOutput:
        return None


def _is_shut(value: Any, reach: Reach) -> bool:
    return not any(True for _ in openings(value, reach))


def _is_equal(value: Any, plain: Plain) -> bool:
    return value is plain.value or (
        is_settled(value) and constant_key(value) == plain.frozen
    )


def _is_as_it_was(value: Any, doubt: Doubt, arrays: Arrays, reach: Reach) -> bool:
    if arrays.is_array(value):
        return False
    if doubt.book:
        return constant_key(value) == doubt.frozen
    return _is_shut(value, reach) and constant_of(value) == doubt.frozen


def _filled(outline: Outline, values: Sequence[Any]) -> Base:
    nodes = [
        Node(
            values[at],
            node.path,
            node.frozen,
            node.openings,
            parent=node.parent,
            step=node.step,
            root=node.root,
        )
        for at, node in zip(outline.things, outline.nodes, strict=True)
    ]
    insides = [_inside(frame, values) for frame in outline.frames]
    known = {(id(node.value), False): number for number, node in enumerate(nodes)}
    return Base(nodes, insides, values, known, outline.slots)


def _inside(frame: Frame, values: Sequence[Any]) -> Inside:
    rows = [*frame.rows]
    for number, at in frame.filled:
        row = rows[number]
        rows[number] = Row(row.key, values[at], row.role, row.frozen, row.node)
    return Inside(frame.node, frame.view, rows, frame.lacks, frame.named)
