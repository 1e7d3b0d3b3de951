"""Binding what a replay made to the slots that the function bound it to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from weakref import ref

from sapwood.tree.call.parameters import Parameters
from sapwood.tree.guards import Slot
from sapwood.tree.node.node import Node

Binding = tuple[int, str, int] | tuple[Callable[[Any], None], None, int]
"""An array by number and its attribute, or what binds a slot; the value by number."""

_NONE: Final[Mapping[str, object]] = {}


def write(
    slots: Sequence[Slot],
    values: Sequence[Any],
    parameters: Parameters,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Bind each slot to its value; raises `MisuseError` where the way is gone."""
    arguments = _NONE
    if any(type(slot.root) is str for slot in slots):
        arguments = parameters.bind(args, kwargs)
    for slot, value in zip(slots, values, strict=True):
        slot.write(value, arguments)


def expect(node: Node, slots: Sequence[Slot], values: Sequence[Any]) -> None:
    """Have the guards of a node expect what was bound to slots."""
    program = node.ambient.program
    if not program.latest:
        return
    if node.expects is None:
        node.expects = tuple(
            (number, place)
            for number, slot in enumerate(slots)
            for place in program.places(slot.path, values[number])
        )
    for number, place in node.expects:
        program.latest[place] = ref(values[number])


class Bindings:
    """How the values of one node are bound while it reads the same objects.

    Most slots are an attribute of an array that it reads: a gradient of a parameter,
    however many ways lead there.
    """

    __slots__ = ("_direct", "_epoch", "_node", "_others")

    def __init__(self, node: Node) -> None:
        self._node = node
        self._epoch = -1
        self._direct: tuple[tuple[int, str, int], ...] = ()
        self._others: tuple[tuple[Slot, int], ...] = ()

    def plan(self) -> Sequence[Binding] | None:
        """Return which array gets which attribute from which value, or what binds it.

        None where that is not known yet, or where a slot is in an argument.
        """
        node, program = self._node, self._node.ambient.program
        if not node.outputs.bound:
            return ()
        told = node.expects is not None or not program.latest
        known = self._epoch == program.epoch and told
        if not known or any(type(slot.root) is str for slot, _ in self._others):
            return None
        writers = ((slot.write, None, number) for slot, number in self._others)
        return *self._direct, *writers

    def bind(
        self,
        slots: Sequence[Slot],
        values: Sequence[Any],
        found: Sequence[Any],
        parameters: Parameters,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Bind each slot to its value; ``found`` are the arrays that the node reads.

        Raises `MisuseError` where the way is gone.
        """
        epoch = self._node.ambient.program.epoch
        if epoch != self._epoch:
            self._plan(slots, values, found)
            self._epoch = epoch
        for k, attribute, number in self._direct:
            setattr(found[k], attribute, values[number])
        if self._others:
            others, numbers = zip(*self._others, strict=True)
            write(others, [values[n] for n in numbers], parameters, args, kwargs)
        expect(self._node, slots, values)

    def _plan(
        self, slots: Sequence[Slot], values: Sequence[Any], found: Sequence[Any]
    ) -> None:
        places = {id(array): k for k, array in enumerate(found)}
        direct: dict[tuple[int, str], int] = {}
        others: list[tuple[Slot, int]] = []
        for number, slot in enumerate(slots):
            k = places.get(id(slot.bearer()))
            if k is None:
                others.append((slot, number))
            elif direct.setdefault((k, slot.attribute), number) != number:
                first = direct[k, slot.attribute]
                if values[first] is not values[number]:
                    others.append((slot, number))
        self._direct = tuple((k, name, number) for (k, name), number in direct.items())
        self._others = tuple(others)
