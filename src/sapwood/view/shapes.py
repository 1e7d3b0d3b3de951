"""Shapes of plain data: what a value must be, and the path of what is not so.

A shape checks a value and names, in a `MisuseError`, the path of the first thing that
is wrong and what was expected there. Fields that a shape does not name are left
alone, so that data may grow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from sapwood.errors import MisuseError

__all__ = [
    "Each",
    "Fields",
    "Flag",
    "Maybe",
    "Number",
    "OneOf",
    "Pair",
    "Shape",
    "Table",
    "Text",
    "Whole",
    "fields",
]

LARGEST_WHOLE = 2**53
"""Beyond it, whole numbers are no longer exact in a browser."""


class Shape(Protocol):
    """What a value must be; ``check`` raises `MisuseError` with the path."""

    def check(self, value: Any, path: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Text:
    """Any text."""

    def check(self, value: Any, path: str) -> None:
        """Raise unless ``value`` is text."""
        if not isinstance(value, str):
            _refuse(path, "text", value)


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    def check(self, value: Any, path: str) -> None:
        """Raise unless ``value`` is a bool."""
        if not isinstance(value, bool):
            _refuse(path, "true or false", value)


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from zero."""

    def check(self, value: Any, path: str) -> None:
        """Raise unless ``value`` is an int in [0, 2^53], and no bool."""
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (whole and 0 <= value <= LARGEST_WHOLE):
            _refuse(path, "a whole number from 0", value)


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number from zero."""

    def check(self, value: Any, path: str) -> None:
        """Raise unless ``value`` is an int or float in [0, inf), and no bool."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and 0 <= value < math.inf):
            _refuse(path, "a finite number from 0", value)


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few values."""

    values: tuple[str | int, ...]

    def check(self, value: Any, path: str) -> None:
        """Raise unless ``value`` is one of the values, and of its type."""
        if not any(type(value) is type(v) and value == v for v in self.values):
            _refuse(path, "one of " + ", ".join(map(repr, self.values)), value)


@dataclass(frozen=True, slots=True)
class Maybe:
    """Null, or what ``shape`` says."""

    shape: Shape

    def check(self, value: Any, path: str) -> None:
        """Raise unless ``value`` is None or fits."""
        if value is not None:
            self.shape.check(value, path)


@dataclass(frozen=True, slots=True)
class Each:
    """A list whose every element is what ``shape`` says."""

    shape: Shape

    def check(self, value: Any, path: str) -> None:
        """Raise unless ``value`` is a list, or tuple, and every element fits."""
        if not isinstance(value, list | tuple):
            _refuse(path, "a list", value)
        for index, element in enumerate(value):
            self.shape.check(element, f"{path}[{index}]")


@dataclass(frozen=True, slots=True)
class Pair:
    """A list of exactly two elements."""

    shape: Shape

    def check(self, value: Any, path: str) -> None:
        """Raise unless ``value`` has two elements and both fit."""
        if not isinstance(value, list | tuple) or len(value) != 2:
            _refuse(path, "a list of two", value)
        Each(self.shape).check(value, path)


@dataclass(frozen=True, slots=True)
class Table:
    """A table from any names to what ``shape`` says."""

    shape: Shape

    def check(self, value: Any, path: str) -> None:
        """Raise unless ``value`` is a dict with text keys and every value fits."""
        if not isinstance(value, dict):
            _refuse(path, "a table", value)
        for name, element in value.items():
            Text().check(name, f"a key of {path}")
            self.shape.check(element, f"{path}.{name}")


@dataclass(frozen=True, slots=True)
class Fields:
    """A table with known names, each with its shape."""

    shapes: Mapping[str, Shape]

    def check(self, value: Any, path: str) -> None:
        """Raise unless ``value`` has every field and each fits."""
        if not isinstance(value, dict):
            _refuse(path, "a table", value)
        for name, shape in self.shapes.items():
            inner = f"{path}.{name}" if path else name
            if name not in value:
                raise MisuseError(f"the snapshot lacks {inner}. {_REMEDY}")
            shape.check(value[name], inner)


def fields(shape: Shape, path: str = "") -> Iterator[tuple[str, Shape]]:
    """Yield the path and shape of every field: ``recordings[].arguments[].name``."""
    match shape:
        case Fields(shapes):
            for name, inner in shapes.items():
                here = f"{path}.{name}" if path else name
                yield here, inner
                yield from fields(inner, here)
        case Each(inner):
            yield from fields(inner, f"{path}[]")
        case Maybe(inner):
            yield from fields(inner, path)


_REMEDY = "Take it from rt.snapshot(); docs/snapshot.md says what is in it"


def _refuse(path: str, expected: str, value: Any) -> NoReturn:
    told = repr(value)
    if len(told) > 60:
        told = f"{told[:57]}..."
    raise MisuseError(f"{path or 'the snapshot'} is {told}, not {expected}. {_REMEDY}")
