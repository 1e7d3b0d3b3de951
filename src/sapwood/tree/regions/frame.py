"""The function's own arrays, where others have some in their stead.

What may lie elsewhere in the next call has a stand-in, which every part that uses it
copies in, and back where it writes. The function works on those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sapwood.driver.streams import Queue
from sapwood.errors import CaptureError
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage, Unowned
from sapwood.tree.call.integration import Array
from sapwood.tree.call.roles import Role
from sapwood.tree.call.signature import Arrays
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.nests.containers import container_of, flatten, unflatten
from sapwood.tree.node.node import Node
from sapwood.tree.record.staging import landing, moved_by, stand_ins
from sapwood.tree.regions.crossing import RAN, Returned
from sapwood.units import Addr


class Frame:
    """The function's ``arrays``, in the order of those that are carried for others.

    ``stages`` is the room of what is copied in, by place; ``new`` are the stand-ins
    that the part in progress brings. ``crossing`` are the places that parts have made,
    by where the function has them.
    """

    # What others have is known by its identity, together with what is the function's:
    # both stay, so that nothing else gets it.

    def __init__(self, carried: Arrays, recordings: Recordings) -> None:
        self._recordings, self._integration = recordings, recordings.integration
        self.arrays: list[Array] = list(carried.arrays)
        self.stages: dict[int, Storage] = {}
        self.new: list[Storage] = []
        self.crossing: dict[Addr, int] = {}
        self._own: dict[int, tuple[Array, Array]] = {}
        self._stood = self._results = 0

    def pair(self, theirs: Array, own: Array) -> Array:
        """Have an array be the function's own for one of others; return its first."""
        return self._own.setdefault(id(theirs), (theirs, own))[1]

    def owned(self) -> list[Array]:
        """Return the function's own arrays, in slots and elsewhere, each once."""
        found = [*self.arrays, *(own for _, own in self._own.values())]
        return [*{id(each): each for each in found}.values()]

    def stand_in(self, carried: Arrays, roles: Sequence[Role], range_: Range) -> None:
        """Have stand-ins, in a range, for what came since the last time."""
        roles = [
            role if i >= self._stood and i not in self.stages else Role.PINNED
            for i, role in enumerate(roles)
        ]
        stages, arrays = stand_ins(carried, roles, range_, self._recordings)
        for k, (theirs, array) in enumerate(zip(carried.arrays, arrays, strict=True)):
            if array is not theirs:
                self.arrays[k] = self.pair(theirs, array)
        self.stages |= stages
        self.new, self._stood = list(stages.values()), len(roles)

    def crosses(self, node: Node, first: int, dropped: Queue) -> None:
        """Take note of what a part has made, whose places begin with the ``first``."""
        for k, block in enumerate(node.outputs.storages):
            self.crossing[block.address] = first + k
            if node.ferries:
                storage = Storage(block.address, block.size, Unowned(), dropped)
                self.stages[first + k] = storage

    def passes(self, own: Sequence[Array], theirs: Sequence[Array]) -> None:
        """Take note of what the function passes, and what a region gets for it."""
        for mine, other in zip(own, theirs, strict=True):
            self.pair(other, mine)
        self.arrays += own
        self._results = len(self.arrays)

    def returned(self, name: str, got: Returned, carried: Arrays) -> None:
        """Take note of an eager region's result; ``carried`` is all that others have.

        Raises `CaptureError` for what the function has no room for.
        """
        for array in got.arrays.arrays:
            own = self.own(array, carried)
            if own is None:
                raise CaptureError(
                    f"the eager region {name} returned more of an array than the "
                    f"function had before; {RAN}",
                    remedy="Return a copy of it, or pass the whole array",
                )
            self.arrays.append(own)

    def own(self, array: Array, carried: Arrays) -> Array | None:
        """Return what the function has for an array of others; None if it has none."""
        known = self._own.get(id(array))
        if known is not None:
            return known[1]
        integration = self._integration
        look = integration.look(array)
        i = next((i for i, s in enumerate(carried.storages) if s is look.storage), -1)
        stage = self.stages.get(i)
        if stage is None:
            return array  # it lies where the function has it, too
        place, (low, end) = carried.places(integration)[i], look.span
        if not place.lo <= low <= end <= place.hi:
            return None
        moved = landing(stage, place) - place.lo
        return self.pair(array, moved_by(moved, array, stage, integration))

    def let_go(self) -> None:
        """Forget all arrays."""
        self.arrays.clear()
        self._own.clear()

    def taken_in(self, result: Any, theirs: Any, own: Any) -> Any:
        """Return an eager region's result, made of what the function has itself.

        The function passed its ``own``, and the eager region got ``theirs``. Raises
        `CaptureError` for a container in which there is one of those that it got.
        """
        is_array = self._integration.is_array
        pairs = zip(
            _containers(theirs, is_array), _containers(own, is_array), strict=True
        )
        known = {id(other): mine for other, mine in pairs}
        if id(result) in known:
            return known[id(result)]
        if any(id(each) in known for each in _containers(result, is_array)):
            raise CaptureError(
                "a region returned a container in which there is one that it was "
                f"passed; {RAN}",
                remedy="Return that one itself, or only the arrays in it",
            )
        arrays = self.arrays[self._results :]
        if not arrays:
            return result
        leaves, structure = flatten(result, is_array)
        rest = iter(arrays)
        taken = [next(rest) if is_array(leaf) else leaf for leaf in leaves]
        return unflatten(structure, taken)


def _containers(value: Any, is_array: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield all containers of a nest, each before those in it."""
    container = container_of(type(value))
    if container is None or is_array(value):
        return
    yield value
    for child in container.flatten(value)[0]:
        yield from _containers(child, is_array)
