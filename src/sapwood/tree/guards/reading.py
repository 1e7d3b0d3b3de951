"""What all slots of a trail held at one moment, and what is made of that when asked.

Most surveys are asked for their arrays, and compared with others of the same values:
neither takes a walk.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from operator import is_, itemgetter
from typing import Any

from sapwood.tree.guards.outline import Doubt, Frame, Outline
from sapwood.tree.guards.program import same
from sapwood.tree.guards.reach import Base, Inside, Node, Row, label_of

__all__ = ["Reading", "picker"]


def picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return what picks the values at some places."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: [values[place] for place in places]


class Reading:
    """The values of all slots and nodes that a trail leads to, as they were read.

    ``things`` are those of nodes, which are of ``classes``, and ``found`` those of
    slots with arrays.
    """

    def __init__(
        self,
        outline: Outline,
        values: list[Any],
        things: Sequence[Any],
        classes: Sequence[type],
        found: Sequence[Any],
    ) -> None:
        self.values, self.things, self.found = values, things, found
        self._outline, self._classes = outline, classes

    def is_of(self, values: list[Any]) -> bool:
        """Return whether values read by now are the same objects, of their classes."""
        return same(values, self.values) and all(
            map(is_, map(type, self.things), self._classes)
        )

    @cached_property
    def doubts(self) -> Sequence[tuple[Any, Doubt]]:
        """The values that may change within, each with what is to be as it was."""
        found: dict[Hashable, tuple[Any, Doubt]] = {}
        for doubt in self._outline.doubts:
            value = self.values[doubt.at]
            found[id(value), doubt.frozen, doubt.book] = value, doubt
        return [*found.values()]

    @cached_property
    def base(self) -> Base:
        """What walks begin with that these values are read by."""
        outline, values = self._outline, self.values
        nodes = [
            Node(
                value,
                node.path,
                node.frozen,
                node.accessors,
                parent=node.parent,
                step=node.step,
                root=node.root,
            )
            for value, node in zip(self.things, outline.nodes, strict=True)
        ]
        insides = [_inside(frame, values) for frame in outline.frames]
        known = {(id(value), False): number for number, value in enumerate(self.things)}
        return Base(nodes, insides, known, outline.slots)

    def arrays(self) -> tuple[Any, ...]:
        """Return the arrays in guarded slots."""
        return tuple([self.values[slot.at] for slot in self._outline.shown])

    def array_slots(self, home: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return these arrays by the paths of their slots; ``home``: see `label_of`."""
        nodes, things = self._outline.nodes, self.things
        return {
            label_of(nodes[node].path, things[node], view, key, home): self.values[at]
            for at, node, view, key in self._outline.shown
        }


def _inside(frame: Frame, values: Sequence[Any]) -> Inside:
    rows = [*frame.rows]
    for number, at in frame.filled:
        row = rows[number]
        rows[number] = Row(row.key, values[at], row.role, row.frozen, row.node)
    return Inside(frame.node, frame.view, rows, frame.lacks, frame.named)
