"""Values of the host that a function only passes on, from a region into its result.

They decide nothing: where such a value is in a result, a recording has None, and each
call puts what the region returned there.
"""

from __future__ import annotations

import operator
from collections.abc import (
    Callable,
    Container,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from sapwood.tree.guards.changes import Added, Change
from sapwood.tree.guards.slots import Item
from sapwood.tree.nests.containers import constant_key, unflatten

Route: TypeAlias = tuple[object, ...]
"""The items, one in the other, by which a value is found in a result."""

OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


class Step(NamedTuple):
    """One operation of a formula, with a number to the right of the value, or left."""

    sign: str
    number: Any
    left: bool = False


IS_INT: Final = "is int"
"""The sign of the question whether there is an int: of NaN, ``int(x)`` makes none."""


class Question(NamedTuple):
    """A comparison of what a formula makes of a value, as `Step`; none: is it true?"""

    steps: tuple[Step, ...]
    sign: str
    number: Any = None
    left: bool = False

    def answer(self, value: Any) -> bool | None:
        """Return what the function is told; None: it never asks that, as of 1 / 0."""
        try:
            value = Place((), self.steps).shows(value)
            pair = (self.number, value) if self.left else (value, self.number)
            return bool(_COMPARISONS[self.sign](*pair) if self.sign else value)
        except (ArithmeticError, TypeError, ValueError):
            return None


_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    IS_INT: lambda value, _: type(value) is int,
}


class Place(NamedTuple):
    """Where a value is in a result: there by a formula, if it has ``steps``."""

    route: Route = ()
    steps: tuple[Step, ...] = ()

    def shows(self, value: Any) -> Any:
        """Return what is there."""
        for sign, number, left in self.steps:
            pair = (number, value) if left else (value, number)
            value = OPERATORS[sign](*pair)
        return value


class Keeping(NamedTuple):
    """A list whose name ends so, that gets the value, or what that is in, at a place.

    Or a number that it is added to.
    """

    name: str
    place: Place = Place()
    adds: bool = False

    def could_be(self, change: Added) -> bool:
        """Return whether a change may be this one: to a thing of that name."""
        return (
            (change.number < 0) == self.adds
            and _is_called(change.slot.path, self.name)
            and _leaf(change.item, self.place.route) == change.slot.leaf
        )


def _leaf(item: Item | None, route: Route) -> int | None:
    """Return which leaf of what is appended is found there."""
    if item is None or not route:
        return 0 if item is None and not route else None
    try:
        found = _at(unflatten(item.structure, [*range(item.leaves)]), route)
    except (LookupError, TypeError):
        return None
    return found if type(found) is int else None


class Way(NamedTuple):
    """Where a value goes if such questions are ``given`` such answers."""

    given: frozenset[tuple[Question, bool]]
    places: tuple[Place, ...]
    kept: tuple[Keeping, ...]


class PassedOn(NamedTuple):
    """What a region returns: ``shown`` as the function gets it, and where that goes.

    That is into the result, at ``places``, and where it is ``kept``. What the function
    ``asks`` of it decides, by the answers: maybe also which of its ``ways`` it goes.
    """

    places: tuple[Place, ...]
    kept: tuple[Keeping, ...]
    shown: Callable[[Any], Any]
    asks: tuple[Question, ...] = ()
    ways: tuple[Way, ...] = ()

    def settled(self, result: Any) -> PassedOn | None:
        """Return where that goes which the region returned; None if it is not clear.

        Nor is it where that raises, which the function may have caught.
        """
        if not self.ways:
            return self if self.can_show(result) else None
        try:
            shown = self.shown(result)
        except Exception:  # noqa: BLE001 - as there
            return None
        found = {
            (way.places, way.kept)
            for way in self.ways
            if all(each.answer(shown) is answer for each, answer in way.given)
        }
        if len(found) != 1:
            return None
        places, kept = found.pop()
        return self._replace(places=places, kept=kept, ways=()).settled(result)

    def can_show(self, result: Any) -> bool:
        """Return whether nothing raises that the function computes of the value."""
        try:
            shown = self.shown(result)
            for place in (*self.places, *(each.place for each in self.kept)):
                place.shows(shown)
        except Exception:  # noqa: BLE001 - numbers may be of any class
            return False
        return True

    def answers(self, result: Any) -> tuple[bool | None, ...]:
        """Return what the function is told of what the region returned."""
        shown = self.shown(result) if self.asks else None
        return tuple(each.answer(shown) for each in self.asks)

    def key(self, result: Any) -> Hashable:
        """Return what decides of what the region returned."""
        if not self.can_show(result):
            return "raises"
        return ("asked", self.answers(result)) if self.asks else "passed on"


def emptied(result: Any, passed: Iterable[tuple[PassedOn, Any]]) -> tuple[Any] | None:
    """Return a result without these values, alone; None where it has others there.

    Beside each is what the region returned.
    """
    for each, value in passed:
        for place in each.places:
            try:
                found = _at(result, place.route)
            except (LookupError, TypeError):  # it is another result than was returned
                return None
            if _key(found) != _key(place.shows(each.shown(value))):
                return None
            result = _with(result, place.route, None)
    return (result,)


def left_of(
    result: Any, changes: Sequence[Change], passed: Sequence[tuple[PassedOn, Any]]
) -> tuple[Any, Sequence[Change]] | None:
    """Return a result and changes without such values; None where these are others."""
    shown, which = emptied(result, passed), appended(changes, passed)
    if shown is None or which is None:
        return None
    return (*shown, without(changes, which))


class Written(NamedTuple):
    """What a slot, by its number, is bound to: what a ``read`` shows at a place."""

    slot: int
    read: int
    place: Place

    def value(self, passed: Sequence[tuple[PassedOn, Any]]) -> Any:
        """Return it, of what was read in this call."""
        return self.place.shows(passed[self.read][1])


def appended(
    changes: Sequence[Change], passed: Iterable[tuple[PassedOn, Any]]
) -> Mapping[int, Written] | None:
    """Return what appends or adds such values, by the number of the change.

    None where that is not clear.
    """
    found: dict[int, Written] = {}
    wanted = [
        (number, keeping, _key(keeping.place.shows(each.shown(value))))
        for number, (each, value) in enumerate(passed)
        for keeping in each.kept
    ]
    for number, keeping, key in wanted:
        alike = [
            i
            for i, change in enumerate(changes)
            if isinstance(change, Added)
            and keeping.could_be(change)
            and _key(change.new) == key
        ]
        others = [each[0] for each in wanted if each[1:] == (keeping, key)]
        # If two reads gave equal values, it is not known which change got which.
        if len(alike) != len(others) or len({*others}) > 1:
            return None
        which = next(i for i in alike if i not in found)
        found[which] = Written(which, number, keeping.place)
    return found


def without(changes: Sequence[Change], which: Container[int]) -> list[Change]:
    """Return changes, those of these numbers with None in the place of the value."""
    return [
        replace(each, new=None) if i in which and isinstance(each, Added) else each
        for i, each in enumerate(changes)
    ]


def _is_called(path: str, name: str) -> bool:
    """Return whether a path is a name, or ends with an attribute or a subscript."""
    return path == name or (name[:1] in {".", "["} and path.endswith(name))


def put_in(
    values: Sequence[Any],
    appends: Sequence[Written],
    passed: Sequence[tuple[PassedOn, Any]],
) -> Sequence[Any]:
    """Return the values to bind, with those that are passed on, as they are now."""
    if not appends:
        return values
    made = [*values]
    for each in appends:
        made[each.slot] = each.value(passed)
    return made


def filled(result: Any, values: Iterable[tuple[PassedOn, Any]]) -> Any:
    """Return a result with values, as the function gets them, where they belong."""
    for each, value in values:
        for place in each.places:
            result = _with(result, place.route, place.shows(value))
    return result


def _at(result: Any, route: Route) -> Any:
    for key in route:
        result = result[key]
    return result


def _with(result: Any, route: Route, value: Any) -> Any:
    """Return a result with another value there: containers on the way are new."""
    if not route:
        return value
    key, *rest = route
    inner = _with(result[key], tuple(rest), value)
    if isinstance(result, dict):
        return {**result, key: inner}
    items = [inner if i == key else each for i, each in enumerate(result)]
    return tuple(items) if isinstance(result, tuple) else items


def _key(value: Any) -> object:
    """Return what two values are compared by: all their bits."""
    if isinstance(value, list):
        return [_key(each) for each in value]
    if hasattr(value, "__array_interface__"):
        return (
            type(value),
            str(value.dtype),
            value.shape,
            value.strides,
            value.tobytes(),
        )
    return constant_key(value)
