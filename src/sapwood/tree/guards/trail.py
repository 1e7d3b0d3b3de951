"""The trail of a walk: by it, a walk that would find the same slots is made at once.

All slots that the walk read are read again, in C, and what it decided by is asked
again. Where nothing says otherwise, a new walk would come to the same slots, and theirs
are the values. A trail keeps no more alive than guards do.

What only the objects decide is not asked again while they are those of a reading that
somebody has: what may change within them, always.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import call, is_
from typing import Any
from weakref import WeakValueDictionary

from sapwood.errors import StaleOutput
from sapwood.tree.guards.accessors import accessors
from sapwood.tree.guards.ambient import Ambient
from sapwood.tree.guards.arrays import Arrays, Witness
from sapwood.tree.guards.constants import constant_of
from sapwood.tree.guards.outline import Doubt, Outline, Plain, is_settled, outlined
from sapwood.tree.guards.program import compiled
from sapwood.tree.guards.reach import Walk, containers
from sapwood.tree.guards.reading import Reading, picker
from sapwood.tree.guards.scope import Reach
from sapwood.tree.guards.starts import Start, starts
from sapwood.tree.nests.containers import constant_key

__all__ = ["Retraced", "Trail"]


@dataclass(slots=True, eq=False, repr=False)
class Retraced:
    """A trail that led once more to all slots, and what they held.

    ``more`` is the walk, where it went on into arguments' containers.
    """

    trail: Trail
    reading: Reading
    arrays: Arrays
    reach: Reach
    home: Mapping[str, Any] | None
    more: Walk | None

    def walk(self) -> Walk:
        """Return the walk that would have found the same."""
        if self.more is not None:
            return self.more
        return Walk.upon(self.reading.base, self.arrays, self.reach, self.home)


class Trail:
    """What one walk came to, and the steps that lead there again.

    ``look`` gives the values of all slots and nodes, or None. ``key`` is the survey's.
    ``ambients`` are the guards made of it that somebody has, by which arrays are used,
    and which of them are one.
    """

    def __init__(
        self,
        outline: Outline,
        look: Callable[[], list[Any] | None],
        walk: Walk,
        key: Hashable,
    ) -> None:
        self.outline, self.key, self._look = outline, key, look
        self.ambients: WeakValueDictionary[Hashable, Ambient]
        self.ambients = WeakValueDictionary()
        self._latest: Callable[[], Reading | None] = lambda: None
        self._witness: Witness | None = None
        reach = walk.reach
        self._names, self._builtins = frozenset(reach.names), frozenset(reach.builtins)
        self._flags = reach.dynamic, reach.advances, reach.compares
        self._own, self._built = frozenset(reach.own), [*map(weakref.ref, reach.built)]
        self._size = reach.size()
        self._pick = picker([each.at for each in outline.plain])
        self._plain = tuple(each.value for each in outline.plain)
        self._things = picker(outline.things)
        self._found = picker(outline.arrays)

    @classmethod
    def of(
        cls,
        walk: Walk,
        key: Hashable,
        fn: Callable[..., Any],
        arguments: Mapping[str, object],
    ) -> Trail | None:
        """Return the trail of a walk; None where a program would not tell enough."""
        begins, _ = starts(fn, arguments, walk.arrays, Reach())
        asked = walk.reach.compares and (walk.array_keys() or walk.ids())
        found = None if asked else outlined(walk, begins)
        look = None if found is None else compiled(found[1])
        return None if found is None or look is None else cls(found[0], look, walk, key)

    def again(
        self, fn: Callable[..., Any], arguments: Mapping[str, object], arrays: Arrays
    ) -> Retraced | None:
        """Return what a walk would find now; None where that is to be walked."""
        reach = self._reach()
        begins, home = starts(fn, arguments, arrays, reach)
        if reach.size() != self._size or reach.own != self._own:
            return None
        if not self._begin_alike(begins, reach):
            return None
        values = self._look()
        reading = None if values is None else self._read(values, begins)
        if reading is None or not self._agree(reading, arrays, reach):
            return None
        more, given = None, containers(arguments, arrays)
        if given:
            more = Walk.upon(reading.base, arrays, reach, home)
            more.into(given)
            apart = len(self.outline.nodes)
            if not all(node.covered for node in more.nodes[apart:]):
                return None
        if reach.size() != self._size:
            return None
        self._latest = weakref.ref(reading)
        return Retraced(self, reading, arrays, reach, home, more)

    def _reach(self) -> Reach:
        names, builtins = set(self._names), set(self._builtins)
        built = {cls for each in self._built if (cls := each()) is not None}
        return Reach(names, builtins, *self._flags, built)

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

    def _read(self, values: list[Any], begins: Sequence[Start]) -> Reading | None:
        """Return these values as one reading; None where a walk decided by others."""
        latest = self._latest()
        if latest is not None and latest.is_of(values):
            return latest
        things, plain = self._things(values), self._pick(values)
        if not (
            all(map(is_, plain, self._plain))
            or all(map(_is_equal, plain, self.outline.plain))
        ):
            return None
        classes = [*map(type, things)]
        if not self._are_those(things, classes, begins):
            return None
        return Reading(self.outline, values, things, classes, self._found(values))

    def _are_those(
        self, things: Sequence[Any], classes: Sequence[type], begins: Sequence[Start]
    ) -> bool:
        """Return whether things are of their classes, each another, starts among them.

        What is come by twice is one node.
        """
        outline, known = self.outline, {*map(id, things)}
        return (
            all(map(is_, classes, map(call, outline.classes)))
            and len(known) == len(things)
            and all(id(begins[number].value) in known for number in outline.walked)
        )

    def _agree(self, reading: Reading, arrays: Arrays, reach: Reach) -> bool:
        """Return whether what may change within objects is as a walk had found it."""
        return (
            self._look_alike(reading.found, arrays)
            and all(
                _is_as_it_was(value, doubt, arrays, reach)
                for value, doubt in reading.doubts
            )
            and all(
                tuple(accessors(reading.values[each.at], reach)) == each.accessors
                for each in self.outline.asked
            )
        )

    def _look_alike(self, found: Sequence[Any], arrays: Arrays) -> bool:
        """Return whether values are arrays that look as those of the walk did."""
        if self._witness is not None and self._witness(found):
            return True
        if not all(map(arrays.is_array, found)):
            return False
        made = arrays.witness(found)
        if _layouts(arrays, found) != self.outline.layouts:
            return False
        # What another thread changes meanwhile, no witness is to stand for.
        self._witness = made if made is not None and made(found) else None
        return True


def _layouts(arrays: Arrays, found: Sequence[Any]) -> list[Hashable] | None:
    try:
        return [*map(arrays.layout, found)]
    except StaleOutput:
        return None


def _is_shut(value: Any, reach: Reach) -> bool:
    return not any(True for _ in accessors(value, reach))


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
