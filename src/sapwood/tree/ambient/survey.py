"""Everything that a function reads besides its array arguments, read at one moment."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cached_property
from types import ModuleType
from typing import Any

from sapwood.tree.ambient.changes import BoundArray, Change
from sapwood.tree.ambient.guards import Ambient, Check, Guard
from sapwood.tree.ambient.reach import Arrays, Inside, Node, Row, Walk, reach
from sapwood.tree.ambient.slots import Slot
from sapwood.tree.ambient.views import EMPTY, REGISTERED, View, value_text
from sapwood.tree.containers import Identity, constant_key

__all__ = ["Survey", "survey"]


def survey(
    fn: Callable[..., Any], arguments: Mapping[str, object], arrays: Arrays
) -> Survey:
    """Read all slots that ``fn`` may read, by itself and through its arguments.

    ``arguments`` are the call's, by parameter. Raises `CaptureError` where the
    function reaches too much.
    """
    return Survey(reach(fn, arguments, arrays), arguments)


class Survey:
    """Slots and what they held; it keeps the values, so let it go after the call."""

    def __init__(self, walk: Walk, arguments: Mapping[str, object]) -> None:
        self._walk, self._arguments = walk, arguments

    @cached_property
    def key(self) -> Hashable:
        """Equal for surveys between which no guarded value differs."""
        return tuple(
            (
                inside.node,
                inside.view.name,
                inside.lacks,
                tuple((constant_key(row.key), *row[2:]) for row in inside.rows),
            )
            for inside in self._guarded()
        ) + tuple(node.frozen for node in self._held())

    def arrays(self) -> tuple[Any, ...]:
        """Return the arrays that the function reaches by itself."""
        return tuple(
            row.value
            for inside in self._guarded()
            for row in inside.rows
            if row.role == "array"
        )

    def guards(self, used: Callable[[Any], bool]) -> Ambient:
        """Return the guards of what was read; ``used`` are the arrays to be pinned."""
        numbers: dict[int, int] = {}
        roots = []
        for number, node in enumerate(self._walk.nodes):
            if _is_held(self._walk, node):
                numbers[number] = len(roots)
                roots.append(Identity(node.value).target)
        checks, slots, pinned = [], [], []
        for inside in self._guarded():
            guards = []
            for row in inside.rows:
                path = self._path(inside, row.key)
                pin = row.role == "array" and used(row.value)
                pinned.append(pin)
                seen = numbers.get(row.node, -1)
                if row.role == "node" and seen < 0:
                    numbers[row.node] = len(numbers)
                guards.append(Guard(path, row.key, row, pin, seen))
                if pin:
                    slots.append(self._slot(inside, row.key, held=True))
            path = self._walk.nodes[inside.node].path
            checks.append(
                Check(numbers[inside.node], path, inside, guards, self._walk.arrays)
            )
        key = (self.key, tuple(pinned))
        return Ambient(tuple(roots), tuple(checks), tuple(slots), key)
