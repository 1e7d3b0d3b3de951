"""Which arrays are one object: of a call's, and of those that its function reaches.

A function may ask, as by ``self.a is x``, and then the answer is part of what it was
recorded under.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sapwood.tree.ambient.reach import Row, Walk
from sapwood.tree.containers import Identity

__all__ = ["Sameness", "firsts", "twins"]


def twins(arrays: Iterable[Any]) -> tuple[int, ...]:
    """Return, for each array, which of them is the first that is the same object.

    A function that binds one slot to what is in another does nothing while that is in
    both; and it does something as soon as one of them holds another array.
    """
    return firsts(map(id, arrays))


def firsts(numbers: Iterable[int]) -> tuple[int, ...]:
    """Return, for each number, where it stands first."""
    first: dict[int, int] = {}
    return tuple([first.setdefault(number, k) for k, number in enumerate(numbers)])


class Sameness(NamedTuple):
    """How arrays are told apart by those who guard them, in the order of a survey.

    ``numbers`` say of each which it is of those that tests come by, in their order;
    behind these come ``keys``, arrays that keys were and are. ``nodes`` are the numbers
    of what is looked into, by when tests come by it; ``ids`` are numbers that somebody
    keeps, and that may be those of arrays. All are empty where the function does not
    ask.
    """

    numbers: tuple[int, ...] = ()
    keys: tuple[Callable[[], object], ...] = ()
    nodes: Mapping[int, int] = {}
    ids: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, walk: Walk, tested: Sequence[Row], places: Mapping[Hashable, int]
    ) -> Sameness:
        """Return that of a walk, of whose arrays these come to be tested.

        One that is not was in another slot before, and is as that one. ``places`` are
        those of nodes among all that tests come by.
        """
        if not walk.reach.compares:
            return cls()
        order = {id(row): k for k, row in enumerate(tested)}
        known = twins(row.value for row in tested)
        first = {id(tested[k].value): k for k in known}
        numbers = [
            order.get(id(row), first[id(row.value)])
            for inside in walk.guarded()
            for row in inside.rows
            if row.role == "array"
        ]
        keys = [Identity(array).target for array in walk.array_keys()]
        numbers += range(len(tested), len(tested) + len(keys))
        nodes = {at: node for node, at in places.items() if isinstance(node, int)}
        return cls(tuple(numbers), tuple(keys), nodes, tuple(walk.ids()))

    def among(self, given: Sequence[Any], reached: Sequence[Any]) -> tuple[int, ...]:
        """Return which are one: see `AmbientKey`; ``reached`` as tests come by them."""
        if not (self.numbers or self.ids):
            return ()
        everything = [*reached, *(key() for key in self.keys)]
        arrays = *given, *map(everything.__getitem__, self.numbers)
        return firsts((*map(id, arrays), *self.ids))

    def of_nests(
        self, containers: Sequence[Any], things: Sequence[Any]
    ) -> tuple[int, ...]:
        """Return which nodes containers are; ``things`` as tests come by them."""
        known = {id(things[at]): node for at, node in self.nodes.items()}
        return tuple(known.get(id(each), -1) for each in containers)
