"""How the result of a replay is put together, decided once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from sapwood.tree.call.output_cache import Made
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.nests.containers import Structure, unflatten
from sapwood.tree.node.node import Node
from sapwood.tree.node.outputs import Alias, Constant, Fresh, Same
from sapwood.tree.replay.compiled import Pattern

__all__ = ["Program"]


class Program:
    """How the result is put together of what a replay makes and what it was given.

    ``made`` are the arrays over new storages that stay where they are, ``flown`` those
    over storages that are copied out. Result and values to bind are picked from
    these, the plain values, and the arrays of the call and of the slots.
    """

    __slots__ = ("flown", "made", "pattern")

    def __init__(
        self, made: tuple[Made, ...], flown: tuple[Made, ...], pattern: Pattern
    ) -> None:
        self.made, self.flown, self.pattern = made, flown, pattern

    @classmethod
    def of(cls, node: Node) -> Program:
        """Return the program of a node's outputs."""
        made: list[Made] = []
        flown: list[Made] = []
        copied = node.copied()
        rest = [k for k in range(len(node.outputs.storages)) if k not in copied]
        number = {k: i for i, k in enumerate(rest)}
        constants: list[Any] = []
        marks: list[tuple[int, int]] = []
        for output in (*node.outputs.leaves, *node.outputs.bound):
            match output:
                case Fresh(k, template, address) if k in copied:
                    marks.append((1, len(flown)))
                    flown.append((k, template, address))
                case Fresh(k, template, address):
                    marks.append((0, len(made)))
                    made.append((number[k], template, address))
                case Constant(value):
                    marks.append((2, len(constants)))
                    constants.append(value)
                case Alias(k):
                    marks.append((3, k))
                case Same(k):
                    marks.append(marks[k])
        starts = [*accumulate(map(len, (made, flown, constants)), initial=0)]
        picks = [starts[kind] + k for kind, k in marks]
        all_made = picks == [*range(len(made) + len(flown))]
        pattern = Pattern(
            len(made) + len(flown),
            tuple(constants),
            None if all_made else picks,
            len(node.outputs.bound),
            _shape(node.outputs.structure),
        )
        return cls(tuple(made), tuple(flown), pattern)

    def copiers(
        self, node: Node, recordings: Recordings
    ) -> Sequence[Callable[[], Any]]:
        """Return what copies each output out by the framework; empty: one cannot be."""
        integration, room = (
            recordings.integration,
            partial(_room_beside, node, recordings),
        )
        numbers = [k for k, *_ in self.flown]
        if len({*numbers}) < len(numbers):
            return ()  # arrays that share their bytes do so in copies, too
        storages, found = node.outputs.storages, []
        for k, template, address in self.flown:
            if address != storages[k].address:
                return ()
            copier = integration.copier(template, address, storages[k].size, room)
            if copier is None:
                return ()
            found.append(copier)
        return found

    def run(
        self,
        makers: Sequence[Callable[[], Any]],
        arrays: Sequence[Any],
        found: Sequence[Any],
    ) -> tuple[Any, Sequence[Any]]:
        """Return a fresh result, and the values to bind."""
        pattern, values = self.pattern, [make() for make in makers]
        if pattern.picks is not None:
            pool = [*values, *pattern.constants, *arrays, *found]
            values = [pool[k] for k in pattern.picks]
        bound: Sequence[Any] = ()
        if pattern.bound:
            values, bound = values[: -pattern.bound], values[-pattern.bound :]
        return values[0] if pattern.shape is None else pattern.shape(values), bound


def _room_beside(node: Node, recordings: Recordings) -> bool:
    """Have idle memory go, or another recording; return whether any did."""
    recordings.busy.add(node)
    try:
        return bool(recordings.device.heap.trim()) or recordings.device.pages.evict()
    finally:
        recordings.busy.discard(node)


def _shape(structure: Structure) -> Callable[[list[Any]], Any] | None:
    """Return what puts leaves together to a fresh nest; None for one leaf alone."""
    if structure is None:
        return None
    parts: Any = structure
    cls, _, folded = parts
    if cls in (list, tuple) and not any(folded):
        return cls  # type: ignore[no-any-return]
    return partial(unflatten, structure)
