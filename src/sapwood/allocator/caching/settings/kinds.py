"""What each kind of setting may be: as a value, and as text.

A `Kind` raises ValueError for what it does not allow; `settings` turns that into a
message. Errors that need more words than ``allowed`` are raised as `MisuseError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sapwood.allocator.caching.settings import spelling
from sapwood.allocator.caching.settings.divisions import Divisions
from sapwood.allocator.caching.settings.spelling import MIB
from sapwood.units import Size, size_text


def _spell(name: str, value: Any) -> str:
    return f"{name}:{value}"


@dataclass(frozen=True, slots=True)
class Kind:
    """What a setting may be.

    ``accept`` checks a value, ``read`` makes one of text (still to be checked), and
    ``spell`` gives name and value as text. ``mib``: text also has the key in MiB.
    """

    allowed: str
    accept: Callable[[Any], Any]
    read: Callable[[str], Any]
    spell: Callable[[str, Any], str] = _spell
    mib: bool = False

    def means(self, meaning: str) -> dict[str, object]:
        """Return the metadata of a field of this kind."""
        return {"kind": self, "meaning": meaning}


def _accept_switch(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(value)
    return value


SWITCH = Kind("True or False", _accept_switch, spelling.switch)


def _accept_size(value: Any, least: int) -> Size:
    if type(value) is not int or value < least or value >= 1 << 60:
        raise ValueError(value)
    return Size(value)


def size(least: int, allowed: str = "") -> Kind:
    """Return the kind of bytes from ``least`` to below 1 EiB."""
    allowed = allowed or f"bytes from {size_text(least)}"
    return Kind(
        f"{allowed}, in text also with a unit, as 64MiB",
        lambda value: _accept_size(value, least),
        spelling.size,
        spelling.size_spelling,
        mib=True,
    )


def optional_size(least: int) -> Kind:
    """Return the kind of bytes from ``least``, or None: unlimited, or not used."""
    return Kind(
        f"bytes from {size_text(least)}, in text also with a unit, as 64MiB; or None",
        lambda value: None if value is None else _accept_size(value, least),
        lambda text: None if text == "None" else spelling.size(text),
        lambda name, value: (
            f"{name}:None" if value is None else spelling.size_spelling(name, value)
        ),
        mib=True,
    )


def fraction(allowed: str, *, below_one: bool = False) -> Kind:
    """Return the kind of floats in [0, 1], or in [0, 1)."""

    def accept(value: Any) -> float:
        if type(value) is not float or not 0.0 <= value <= 1.0:
            raise ValueError(value)
        if below_one and value == 1.0:
            raise ValueError(value)
        return value

    return Kind(f"a float {allowed}", accept, spelling.decimal)


def power_of_two(most: int) -> Kind:
    """Return the kind of powers of two up to ``most``."""

    def accept(value: Any) -> int:
        if type(value) is not int or not 1 <= value <= most or value & (value - 1):
            raise ValueError(value)
        return value

    return Kind(f"a power of two from 1 to {most}", accept, spelling.whole)


_LEAST_RESERVE = 2 * MIB
_MOST_RESERVE = 64.0


def _accept_reserve(value: Any) -> Size | float | None:
    if value is None:
        return None
    if type(value) is float:
        if not 0.0 < value <= _MOST_RESERVE or not math.isfinite(value):
            raise ValueError(value)
        return value
    return _accept_size(value, _LEAST_RESERVE)


def _read_reserve(text: str) -> Size | float | None:
    if text == "None":
        return None
    if "." in text or "e" in text:
        return spelling.decimal(text)
    return spelling.size(text)


RESERVE = Kind(
    "a float above 0 (of the device's memory, as 1.125), bytes from 2 MiB (in text "
    "also 40GiB), or None",
    _accept_reserve,
    _read_reserve,
)


def _accept_divisions(value: Any) -> Divisions:
    if isinstance(value, Divisions):
        return value
    if isinstance(value, str):
        return _accept_divisions(_read_divisions(value))
    if isinstance(value, Mapping):
        return Divisions.by_interval(value)
    return Divisions.everywhere(value)


def _read_divisions(text: str) -> Any:
    return spelling.listed(text) if text.startswith("[") else spelling.whole(text)


DIVISIONS = Kind(
    "a power of two, 0, or intervals in MiB with divisions, as [256:1,512:2,>:8], "
    "each once and > last",
    _accept_divisions,
    _read_divisions,
)
