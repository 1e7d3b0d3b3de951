"""Values of the host that a function only passes on, from a region into its result.

They decide nothing: where such a value is in a result, a recording has None, and each
call puts what the region returned there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from sapwood.tree.nests.containers import constant_key

Route: TypeAlias = tuple[object, ...]
"""The items, one in the other, by which a value is found in a result."""


class PassedOn(NamedTuple):
    """What a region returns: ``shown`` as the function gets it, and where that goes."""

    routes: tuple[Route, ...]
    shown: Callable[[Any], Any]


def emptied(result: Any, passed: Iterable[tuple[PassedOn, Any]]) -> tuple[Any] | None:
    """Return a result without these values, alone; None where it has others there.

    Beside each is what the region returned.
    """
    for each, value in passed:
        for route in each.routes:
            if _key(_at(result, route)) != _key(each.shown(value)):
                return None
            result = _with(result, route, None)
    return (result,)


def filled(result: Any, values: Iterable[tuple[PassedOn, Any]]) -> Any:
    """Return a result with values, as the function gets them, where they belong."""
    for each, value in values:
        for route in each.routes:
            result = _with(result, route, value)
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
