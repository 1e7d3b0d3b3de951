"""What a function has in its hands while it is recorded in parts, and others do not.

What may lie elsewhere in the next call has a stand-in, in the range of the part that
had it first. What a part has made the function finds where it was captured; others may
have a copy of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sapwood.driver.streams import Queue, Stream
from sapwood.memory.device import Device
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.tree.adapter import Adapter, Array
from sapwood.tree.containers import flatten, unflatten
from sapwood.tree.live.crossing import Returned
from sapwood.tree.node import Node
from sapwood.tree.outputs import Bytes
from sapwood.tree.roles import Role
from sapwood.tree.signature import Arrays
from sapwood.tree.stage import landing, stand_ins
from sapwood.units import Addr

__all__ = ["Frame"]


class _Nobody:
    """The token of bytes that somebody else gives back."""

    def ended(self, streams: tuple[Stream, ...]) -> None:
        del streams


_NOBODY: Final = _Nobody()


class Frame:
    """The function's ``arrays``, in the order of those that are carried for others.

    ``stages`` is the room of what is copied in, by place; ``new`` are the stand-ins
    that the part in progress brings. ``crossing`` are the places that parts have made,
    by where the function has them, and ``blocks`` those bytes, in their order.
    """

    def __init__(self, carried: Arrays, adapter: Adapter) -> None:
        self._adapter = adapter
        self.arrays: list[Array] = list(carried.arrays)
        self.stages: dict[int, Storage] = {}
        self.new: list[Storage] = []
        self.crossing: dict[Addr, int] = {}
        self.blocks: list[Bytes] = []
        self._stood = self._results = 0

    def stand_in(
        self, carried: Arrays, roles: Sequence[Role], range_: Range, device: Device
    ) -> None:
        """Have stand-ins, in a range, for what came since the last time."""
        places = carried.places(self._adapter)
        roles = [
            role if i >= self._stood and i not in self.stages else Role.PINNED
            for i, role in enumerate(roles)
        ]
        stages, arrays = stand_ins(
            carried, places, roles, range_, device, self._adapter
        )
        for k, (theirs, array) in enumerate(zip(carried.arrays, arrays, strict=True)):
            if array is not theirs:
                self.arrays[k] = array
        self.stages |= stages
        self.new, self._stood = list(stages.values()), len(places)

    def crosses(self, node: Node, first: int, dropped: Queue) -> None:
        """Take note of what a part has made, whose places begin with the ``first``."""
        for k, block in enumerate(node.outputs.storages):
            self.crossing[block.address] = first + k
            if node.escapes:
                storage = Storage(block.address, block.size, _NOBODY, dropped)
                self.stages[first + k] = storage

    def returned(
        self, passed: Sequence[Array], got: Returned | None, carried: Arrays
    ) -> None:
        """Take note of what the function has passed to a live part, and of the result.

        ``carried`` is all that others have by now, the result included.
        """
        self.arrays += passed
        self._results = len(self.arrays)
        if got is None:
            return
        arrays = list(got.arrays.arrays)
        for group, known in zip(got.arrays.groups(), got.shared, strict=True):
            for k in group if known is not None else ():
                arrays[k] = self.own(arrays[k], carried)
        self.arrays += arrays

    def own(self, array: Array, carried: Arrays) -> Array:
        """Return what the function has for an array of others."""
        for own, theirs in zip(self.arrays, carried.arrays, strict=False):
            if theirs is array:
                return own
        adapter = self._adapter
        storage = adapter.storage(array)
        i = next((i for i, s in enumerate(carried.storages) if s is storage), -1)
        stage = self.stages.get(i)
        if stage is None:
            return array  # it lies where the function has it, too
        place = carried.places(adapter)[i]
        at = Addr(landing(stage, place) + adapter.address(array) - place.lo)
        return adapter.make(adapter.template(array), stage, at)

    def taken_in(self, result: Any) -> Any:
        """Return a live part's result, made of the function's own arrays."""
        is_array, arrays = self._adapter.is_array, self.arrays[self._results :]
        if not arrays:
            return result
        leaves, structure = flatten(result, is_array)
        own = iter(arrays)
        taken = [next(own) if is_array(leaf) else leaf for leaf in leaves]
        return unflatten(structure, taken)
