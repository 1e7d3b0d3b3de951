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


def planned(
    slots: Sequence[Slot], values: Sequence[Any], found: Sequence[Any]
) -> Sequence[Binding] | None:
    """Return which array gets which attribute from which value, or what binds it.

    ``values`` were bound by the last replay, ``found`` are the arrays that it read.
    Most slots are an attribute of one: a gradient of a parameter, however many ways
    lead there. None where a slot is in an argument.
    """
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
    if any(type(slot.root) is str for slot, _ in others):
        return None
    writers = ((slot.write, None, number) for slot, number in others)
    return *((k, name, number) for (k, name), number in direct.items()), *writers
