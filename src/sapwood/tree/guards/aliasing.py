"""Which arrays are one object: of a call's, and of those that its function reaches.

A function may ask, as by ``self.a is x``, and then the answer is part of what it was
recorded under. So it is of things that are looked into, where guards compare these by
class and contents alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from sapwood.tree.guards.reach import Inside, Row, Walk
from sapwood.tree.guards.standard import BUFFER
from sapwood.tree.guards.views import CELLS, FUNCTION
from sapwood.tree.nests.containers import constant_key, weakly


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


class Aliasing(NamedTuple):
    """How arrays are told apart by those who guard them, in the order of a survey.

    ``numbers`` say of each which it is of those that tests come by, in their order;
    behind these come ``keys``, arrays that keys were and are. ``nodes`` are the numbers
    of what is looked into, by when tests come by it; ``ids`` are numbers that somebody
    keeps, and that may be those of arrays. All are empty where no function ``asks``.
    """

    numbers: tuple[int, ...] = ()
    keys: tuple[Callable[[], object], ...] = ()
    nodes: Mapping[int, int] = {}
    ids: tuple[int, ...] = ()
    asks: bool = False

    @classmethod
    def of(
        cls, walk: Walk, tested: Sequence[Row], places: Mapping[Hashable, int]
    ) -> Aliasing:
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
            order.get(id(row), first[id(row.value)]) for _, row in walk.arrays_found()
        ]
        keys = [*map(weakly, walk.array_keys())]
        numbers += range(len(tested), len(tested) + len(keys))
        nodes = {at: node for node, at in places.items() if isinstance(node, int)}
        return cls(tuple(numbers), tuple(keys), nodes, tuple(walk.ids()), asks=True)

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


class Apart(NamedTuple):
    """Things that were several objects, and that no other guard would tell apart.

    ``places`` are theirs among all things that tests come by.
    """

    places: tuple[int, ...]
    paths: tuple[str, ...]

    def holds(self, things: Sequence[Any]) -> bool:
        """Return whether they are as many objects still."""
        return len({id(things[place]) for place in self.places}) == len(self.places)

    def told(self, things: Sequence[Any]) -> str:
        """Name two that are one by now."""
        objects = [id(things[place]) for place in self.places]
        one, other = next((k, n) for n, k in enumerate(firsts(objects)) if k != n)
        both = f"{self.paths[one]} and {self.paths[other]}"
        return f"{both} were two objects, are one object"


def kept_apart(walk: Walk, places: Mapping[Hashable, int]) -> tuple[Apart, ...]:
    """Return what has to stay apart; ``places`` are those of nodes, by number.

    Where the function does not ask, that is what it adds to, from all else.
    """
    added = {type(node.value) for node in walk.nodes if node.added}
    groups = [
        [n for n in places if isinstance(n, int) and type(walk.nodes[n].value) is cls]
        for cls in added
    ]
    if walk.reach.compares:
        looks: dict[int, list[Hashable]] = {}
        for inside in walk.guarded():
            looks.setdefault(inside.node, []).extend(_looks(walk, inside))
        alike: dict[Hashable, list[int]] = {}
        for number, node in enumerate(walk.nodes):
            if number in places:
                look = type(node.value), tuple(looks.get(number, ()))
                alike.setdefault(look, []).append(number)
        groups += (
            each
            for each in alike.values()
            if any(isinstance(walk.nodes[number].frozen, type) for number in each)
        )
    return tuple(
        Apart(tuple(places[n] for n in each), tuple(walk.nodes[n].path for n in each))
        for each in groups
        if len(each) > 1
    )


def _looks(walk: Walk, inside: Inside) -> list[Hashable]:
    """Return what one object cannot have in two ways at once.

    Views that are opened of some instances of a class only say nothing of that.
    """
    view, cls = inside.view, type(walk.nodes[inside.node].value)
    if view is BUFFER or (cls is FunctionType and view not in {FUNCTION, CELLS}):
        return []
    rows = tuple(
        (constant_key(row.key), row.role, None if row.role == "array" else row.frozen)
        for row in inside.rows
    )
    return [(view.name, inside.lacks, rows)]
