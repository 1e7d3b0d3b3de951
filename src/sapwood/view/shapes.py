"""Shapes of plain data: what a value must be, and the path of what is not so.

`check` names, in a `MisuseError`, the path of the first thing that is wrong and what
was expected there. A dict is the shape of a table with these fields; fields that it
does not name are left alone, so that data may grow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

from sapwood.errors import MisuseError

__all__ = [
    "FLAG",
    "NUMBER",
    "TEXT",
    "WHOLE",
    "Each",
    "Maybe",
    "Shape",
    "Table",
    "check",
    "fields",
    "one_of",
]

LARGEST_WHOLE = 2**53
"""Beyond it, whole numbers are no longer exact in a browser."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """What ``fits``; messages say what was ``expected``."""

    expected: str
    fits: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Maybe:
    """Null, or what ``shape`` says."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class Each:
    """A list, or tuple, whose every element is what ``shape`` says."""

    shape: Shape
    of_two: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table from any names to what ``shape`` says."""

    shape: Shape


Shape: TypeAlias = Leaf | Maybe | Each | Table | dict[str, Any]


def _is_whole(value: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and 0 <= value <= LARGEST_WHOLE


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value < math.inf


TEXT: Final = Leaf("text", lambda value: isinstance(value, str))
FLAG: Final = Leaf("true or false", lambda value: isinstance(value, bool))
WHOLE: Final = Leaf("a whole number from 0", _is_whole)
NUMBER: Final = Leaf("a finite number from 0", _is_number)


def one_of(*values: str | int) -> Leaf:
    """Return the shape of one of a few values, each of its own type."""
    expected = "one of " + ", ".join(map(repr, values))
    return Leaf(expected, lambda v: any(type(v) is type(w) and v == w for w in values))


def check(shape: Shape, value: Any, path: str) -> None:
    """Raise `MisuseError` with the path unless ``value`` is what ``shape`` says."""
    match shape:
        case Leaf(expected, fits) if not fits(value):
            _refuse(path, expected, value)
        case Maybe(inner) if value is not None:
            check(inner, value, path)
        case Each(inner, of_two):
            if not isinstance(value, list | tuple) or (of_two and len(value) != 2):
                _refuse(path, "a list of two" if of_two else "a list", value)
            for index, element in enumerate(value):
                check(inner, element, f"{path}[{index}]")
        case Table() | dict():
            _check_table(shape, value, path)


def _check_table(shape: Table | dict[str, Shape], value: Any, path: str) -> None:
    if not isinstance(value, dict):
        _refuse(path, "a table", value)
    for key in value if isinstance(shape, Table) else ():
        check(TEXT, key, f"a key of {path}")
    inside = dict.fromkeys(value, shape.shape) if isinstance(shape, Table) else shape
    for name, inner in inside.items():
        here = f"{path}.{name}" if path else name
        if name not in value:
            raise MisuseError(f"the snapshot lacks {here}. {_REMEDY}")
        check(inner, value[name], here)


def fields(shape: Shape, path: str = "") -> Iterator[tuple[str, Shape]]:
    """Yield the path and shape of every field: ``recordings[].arguments[].name``."""
    match shape:
        case Each(inner, of_two):
            if not of_two:
                yield from fields(inner, f"{path}[]")
        case Maybe(inner):
            yield from fields(inner, path)
        case dict():
            for name, inner in shape.items():
                here = f"{path}.{name}" if path else name
                yield here, inner
                yield from fields(inner, here)


_REMEDY = "Take it from rt.snapshot(); docs/snapshot.md says what is in it"


def _refuse(path: str, expected: str, value: Any) -> NoReturn:
    told = repr(value)
    if len(told) > 60:
        told = f"{told[:57]}..."
    raise MisuseError(f"{path or 'the snapshot'} is {told}, not {expected}. {_REMEDY}")
