"""Slots that were described in another process, found again in this one.

A description may be anybody's: a slot counts as found only where it holds what such
slots hold, and where what guards find is the very same.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sapwood.errors import MisuseError
from sapwood.persist.archive import SlotBinding
from sapwood.tree.call.integration import Integration
from sapwood.tree.guards import Ambient, Slot, Survey
from sapwood.tree.guards.views import EMPTY

__all__ = ["Finder"]

_ASTRAY: Final = object()
"""Stands for what a slot holds that is not there."""


class Finder:
    """Finds slots from what a call's function reaches, and from its ``arguments``."""

    def __init__(
        self, survey: Survey, arguments: Mapping[str, object], integration: Integration
    ) -> None:
        self.survey, self.arguments, self.integration = survey, arguments, integration

    def ambient(self, bindings: Sequence[SlotBinding]) -> Ambient | str:
        """Return the guards of now, with arrays in ``bindings`` pinned, or why not."""
        wanted: set[int] = set()
        ways: list[Hashable] = []
        for binding in bindings:
            slot, held = self._found(binding)
            if slot is None or not self.integration.is_array(held):
                return f"{binding.path} holds no array any more"
            wanted.add(id(held))
            ways.append((slot.start, slot.steps))
        ambient = self.survey.guards(lambda array: id(array) in wanted)
        if [(slot.start, slot.steps) for slot in ambient.arrays] != ways:
            return "its arrays are reached by other names"
        return ambient

    def bindable(self, bindings: Sequence[SlotBinding]) -> tuple[Slot, ...] | str:
        """Return the slots in ``bindings``, which hold arrays or none, or why not."""
        slots: list[Slot] = []
        for binding in bindings:
            slot, held = self._found(binding)
            fits = held is None or held is EMPTY or self.integration.is_array(held)
            if slot is None or slot.steps[-1][0].store is None or not fits:
                return f"{binding.path} is not there to be bound"
            slots.append(slot)
        return tuple(slots)

    def _found(self, binding: SlotBinding) -> tuple[Slot | None, Any]:
        slot = self.survey.slot(binding.path, binding.start, binding.steps)
        if slot is None or len(slot.steps) != len(binding.steps):
            return None, _ASTRAY
        try:
            return slot, self._held(slot)
        except (AttributeError, LookupError, MisuseError, TypeError, ValueError):
            return None, _ASTRAY

    def _held(self, slot: Slot) -> Any:
        view, key = slot.steps[-1]
        space = view.open(self._owner(slot))
        if isinstance(space, Mapping):
            # Names are of text, however one came by them; any key may be in a dict.
            named = type(key) is str or view.extent == "keys"
            return space.get(key, EMPTY) if named else _ASTRAY
        return space[key] if type(key) is int else _ASTRAY

    def _owner(self, slot: Slot) -> object:
        if len(slot.steps) > 1:
            return replace(slot, steps=slot.steps[:-1]).read(self.arguments)
        root = slot.root
        return self.arguments.get(root) if isinstance(root, str) else root()
