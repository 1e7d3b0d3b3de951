"""What each kind of setting may be: as a value, and as text.

A `Kind` raises ValueError for what it does not allow; `settings` turns that into a
message. Errors that need more words than ``allowed`` are raised as `MisuseError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

from sapwood.allocator.caching.settings import spelling
from sapwood.allocator.caching.settings.divisions import Divisions
from sapwood.allocator.caching.settings.spelling import MIB
from sapwood.units import size_text


@dataclass(frozen=True, slots=True)
class Kind:
    """What a setting may be: a value of one of ``types`` that is None or ``fits``.

    ``read`` makes a value of text (still to be checked), ``convert`` one of whatever
    is given instead of it. ``mib``: text also has the key in MiB.
    """

    allowed: str
    types: tuple[type, ...]
    read: Callable[[str], Any]
    fits: Callable[[Any], bool] = lambda _: True
    convert: Callable[[Any], Any] = lambda value: value
    mib: bool = False

    def accept(self, given: object) -> Any:
        """Return the value that is given."""
        value = self.convert(given)
        if type(value) not in self.types or not (value is None or self.fits(value)):
            raise ValueError(given)
        return value

    def parse(self, text: str) -> Any:
        """Return the value that ``text`` spells."""
        nothing = text == "None" and NoneType in self.types
        return self.accept(None if nothing else self.read(text))

    def spell(self, name: str, value: Any) -> str:
        """Return name and value as text: ``name_mb:64`` for whole MiB."""
        if self.mib and value is not None and not value % MIB:
            return f"{name}_mb:{value // MIB}"
        return f"{name}:{value}"


SWITCH = Kind("True or False", (bool,), spelling.switch)


def _is_size(value: int, least: int) -> bool:
    return least <= value < 1 << 60


def size(least: int, allowed: str = "", *, optional: bool = False) -> Kind:
    """Return the kind of bytes from ``least`` to below 1 EiB.

    Optional ones may be None: unlimited, or not used.
    """
    allowed = allowed or f"bytes from {size_text(least)}"
    return Kind(
        f"{allowed}, in text also with a unit, as 64MiB{'; or None' * optional}",
        (int, NoneType) if optional else (int,),
        spelling.size,
        lambda value: _is_size(value, least),
        mib=True,
    )


FRACTION = Kind(
    "a float from 0.0 to 1.0", (float,), spelling.decimal, lambda v: 0.0 <= v <= 1.0
)
THRESHOLD = Kind(
    "a float from 0.0 (off) to below 1.0",
    (float,),
    spelling.decimal,
    lambda value: 0.0 <= value < 1.0,
)
THREADS = Kind(
    "a power of two from 1 to 128",
    (int,),
    spelling.whole,
    lambda value: 1 <= value <= 128 and value.bit_count() == 1,
)


RESERVE = Kind(
    "a float above 0 (of the device's memory, as 1.125), bytes from 2 MiB (in text "
    "also 40GiB), or None",
    (float, int, NoneType),
    lambda text: (spelling.decimal if {".", "e"} & {*text} else spelling.size)(text),
    lambda v: 0.0 < v <= 64.0 if type(v) is float else _is_size(v, 2 * MIB),
)


def _read_divisions(text: str) -> Any:
    return spelling.listed(text) if text.startswith("[") else spelling.whole(text)


def _divisions(given: Any) -> Divisions:
    if isinstance(given, Divisions):
        return given
    if isinstance(given, str):
        given = _read_divisions(given)
    if isinstance(given, Mapping):
        return Divisions.by_interval(given)
    return Divisions.everywhere(given)


DIVISIONS = Kind(
    "a power of two, 0, or intervals in MiB with divisions, as [256:1,512:2,>:8], "
    "each once and > last",
    (Divisions,),
    _read_divisions,
    convert=_divisions,
)
