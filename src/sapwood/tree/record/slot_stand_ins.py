"""Stand-ins in slots, for arrays that lie elsewhere in every call.

While a function is captured it finds them where it reads by itself. Replays copy in
what the slots hold then, and back where the function writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from sapwood.errors import MisuseError
from sapwood.memory.device import Device
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array, Integration
from sapwood.tree.call.roles import Role
from sapwood.tree.call.signature import look
from sapwood.tree.guards import Slot, Survey
from sapwood.tree.record.staging import stand_ins


class SlotStandIns:
    """What stands in, in a range, for the arrays in slots; ``stages`` is their room."""

    def __init__(
        self,
        slots: Sequence[tuple[Slot, Array]],
        range_: Range,
        device: Device,
        integration: Integration,
    ) -> None:
        found = look([array for _, array in slots], integration)
        roles = [Role.COPIED] * len(found.storages)
        stages, own = stand_ins(found, roles, range_, device, integration)
        self.stages = {storage: stages[i] for i, storage in enumerate(found.storages)}
        pairs = zip(found.arrays, own, strict=True)
        self._own = {id(array): (array, mine) for array, mine in pairs}
        self._slots = slots

    def own(self, array: Array) -> Array:
        """Return what the function finds for an array: that itself, or a stand-in."""
        known = self._own.get(id(array))
        return array if known is None else known[1]

    def arrays(self) -> list[Array]:
        """Return the stand-ins."""
        return [own for _, own in self._own.values()]

    def enter(self, arguments: Mapping[str, object]) -> None:
        """Have the function find the stand-ins."""
        for slot, array in self._slots:
            slot.write(self.own(array), arguments)

    def leave(self, arguments: Mapping[str, object]) -> None:
        """Have slots hold their arrays again, but for what the function has bound."""
        for slot, array in self._slots:
            put_back(slot, self.own(array), array, arguments)


def put_back(
    slot: Slot, own: Array, array: Array, arguments: Mapping[str, object]
) -> None:
    """Have a slot hold an array again, unless the function has bound another one."""
    with suppress(MisuseError):  # the function has done away with the way there
        if slot.held(arguments) is own:
            slot.write(array, arguments)


def moving(
    survey: Survey,
    given: Iterable[Storage],
    fixed: Callable[[str, Storage], bool],
    integration: Integration,
) -> list[tuple[Slot, Array]]:
    """Return the slots whose arrays move with every call, and can be stood in for.

    Those are not that share a storage with an array ``given`` as an argument, or with
    one in a slot that cannot be bound. ``fixed`` says which slot's arrays are where
    they were.
    """
    slots = survey.slots_of_arrays()
    keys = {id(key) for key in survey.array_keys()}
    stay = {*given}
    moves: set[Storage] = set()
    for slot, array in slots:
        storage = integration.storage(array)
        if not slot.can_be_bound or id(array) in keys or not integration.is_bare(array):
            stay.add(storage)
        elif not fixed(slot.path, storage):
            moves.add(storage)
    moves -= stay
    return [each for each in slots if integration.storage(each[1]) in moves]
