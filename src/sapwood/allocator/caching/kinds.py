"""What each kind of setting may be: as a value, and as text.

Text is ``key:value,key:[a:b,c:d]``, the spelling that PyTorch uses; spaces around words
are free. `pairs` reads only the structure; the readers turn one value's text into a
value. They and a `Kind` raise ValueError for what is not allowed; `settings` turns that
into a message. Errors that need more words than ``allowed`` are `MisuseError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

from sapwood.errors import MisuseError
from sapwood.units import Size, size_text

MIB = 1 << 20

_EXAMPLE = "Write key:value pairs with commas between, such as expandable_segments:True"
_SCALES = {"": 1, "B": 1, "K": 1 << 10, "M": MIB, "G": 1 << 30, "T": 1 << 40}


def pairs(text: str) -> list[tuple[str, str]]:
    """Return the keys and values of ``text``, in its order; lists with brackets.

    Raises `MisuseError` that names the piece where a key, a colon, a value, a comma
    or a bracket is missing.
    """
    if not text.strip():
        return []
    return [_pair(piece, text) for piece in _pieces(text)]


def _pieces(text: str) -> list[str]:
    """Split at the commas that are outside brackets."""
    inside = False
    for bracket in re.finditer(r"[\[\]]", text):
        if inside == (bracket[0] == "["):
            raise MisuseError(
                f"{text!r}: unexpected {bracket[0]!r} at position {bracket.start()}. "
                "Write a list as [256:1,512:2,>:8]"
            )
        inside = not inside
    if inside:
        raise MisuseError(f"{text!r}: a list is not closed. Put ] at its end")
    return re.split(r",(?![^\[]*\])", text)


def _pair(piece: str, text: str) -> tuple[str, str]:
    match = re.fullmatch(r"\s*([^\s:\[\]]+)\s*:\s*(\[[^\[\]]*\]|[^\s:\[\]]+)\s*", piece)
    if match is None:
        shown = piece.strip()
        where = "" if shown == text.strip() else f"{text!r}: "
        raise MisuseError(f"{where}{shown!r} is not one key:value pair. {_EXAMPLE}")
    return match[1], match[2]


def _matched(pattern: str, text: str) -> re.Match[str]:
    """Return how a pattern matches all of a text; raises ValueError if it does not."""
    match = re.fullmatch(pattern, text)
    if match is None:
        raise ValueError(text)
    return match


def _read_switch(text: str) -> bool:
    """Return the truth of ``True`` or ``False``."""
    return _matched("True|False", text)[0] == "True"


def read_whole(text: str) -> int:
    """Return a whole number from its decimal digits."""
    return int(_matched(r"[0-9]{1,18}", text)[0])


def _read_decimal(text: str) -> float:
    """Return a number from digits with at most one point, or an exponent."""
    decimal = r"[0-9]+(\.[0-9]*)?(e-?[0-9]{1,3})?|\.[0-9]+"
    return float(_matched(decimal, text)[0])


def _read_size(text: str) -> Size:
    """Return bytes from a whole number with or without a unit: ``64M``, ``64MiB``."""
    match = _matched(r"([0-9]{1,18})(|B|[KMGT](?:I?B)?)", text.upper())
    return Size(int(match[1]) * _SCALES[match[2][:1]])


def _read_list(text: str) -> dict[object, object]:
    """Return the numbers of a list ``[256:1,>:8]``; the key of ``>`` stays text."""
    numbers: dict[object, object] = {}
    for piece in text[1:-1].split(","):
        match = _matched(r"\s*([0-9]{1,18}|>)\s*:\s*([0-9]{1,18})\s*", piece)
        interval = match[1] if match[1] == ">" else int(match[1])
        if interval in numbers or ">" in numbers:
            raise ValueError(text)
        numbers[interval] = int(match[2])
    return numbers


_MIB_SHIFT = 20
_INTERVALS = 16  # 1 MiB, 2 MiB, … 32 GiB
_NAME = "roundup_power2_divisions"


class Divisions(Mapping[int, int]):
    """Divisions by interval: key *m* covers sizes from *m* to 2 *m* MiB.

    Has the keys 1, 2, 4, … 32768, or none where nothing is rounded so. Sizes below
    1 MiB belong to the first, sizes from 64 GiB to the last. Immutable; hashable.
    """

    __slots__ = ("_steps",)

    def __init__(self, steps: Iterable[int] = ()) -> None:
        self._steps = tuple(steps)

    def __getitem__(self, interval: int) -> int:
        return dict(zip(self, self._steps, strict=True))[interval]

    def __iter__(self) -> Iterator[int]:
        return (1 << power for power in range(len(self._steps)))

    def __len__(self) -> int:
        return len(self._steps)

    def __hash__(self) -> int:
        return hash(self._steps)

    def __repr__(self) -> str:
        return f"Divisions({self})"

    def of(self, size: int) -> int:
        """Return the divisions for a request of ``size`` bytes; 0: not rounded so."""
        if not self._steps:
            return 0
        power = size.bit_length() - 1 - _MIB_SHIFT
        return self._steps[min(max(power, 0), _INTERVALS - 1)]

    def __str__(self) -> str:
        """Return the shortest spelling: one number, or a list of intervals."""
        steps = self._steps
        if len(set(steps)) <= 1:
            return str(steps[0] if steps else 0)
        first = next(i for i, count in enumerate(steps) if count != steps[0]) - 1
        rest = next(i for i in range(_INTERVALS - 1, -1, -1) if steps[i] != steps[-1])
        pairs = [f"{1 << power}:{steps[power]}" for power in range(first, rest + 1)]
        return f"[{','.join(pairs)},>:{steps[-1]}]"

    @classmethod
    def by_interval(cls, given: Mapping[object, object]) -> Divisions:
        """Return divisions from intervals in MiB, the last of which may be ``">"``.

        Sizes below the first interval are divided as it is; ``">"`` covers all
        above the largest, or every size; intervals that are not named are not rounded
        so. Raises `MisuseError` for intervals and divisions that are no powers of two.
        """
        rest = _steps(given.get(">", 0))
        named = {
            _power(interval): _steps(steps)
            for interval, steps in given.items()
            if interval != ">"
        }
        steps = [rest] * _INTERVALS
        if named:
            first, last = min(named), max(named)
            steps[: last + 1] = [
                named.get(max(power, first), 0) for power in range(last + 1)
            ]
        return cls(steps) if any(steps) else NO_DIVISIONS


def _steps(value: object) -> int:
    if type(value) is not int or value < 0 or value & (value - 1):
        raise MisuseError(
            f"{_NAME}: {value!r} divisions are not allowed. Set a power of two, or 0 "
            "to round to multiples of 512 B only"
        )
    return value


def _power(interval: object) -> int:
    if type(interval) is not int or interval < 1 or interval & (interval - 1):
        raise MisuseError(
            f"{_NAME}: the interval {interval!r} is not allowed. Name intervals in "
            "MiB by powers of two from 1 to 32768, or > for all above"
        )
    power = interval.bit_length() - 1
    if power >= _INTERVALS:
        raise MisuseError(
            f"{_NAME}: the interval {interval} is too large. The last is 32768 MiB, "
            "and covers everything above it"
        )
    return power


NO_DIVISIONS = Divisions()


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


SWITCH = Kind("True or False", (bool,), _read_switch)


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
        _read_size,
        lambda value: _is_size(value, least),
        mib=True,
    )


FRACTION = Kind(
    "a float from 0.0 to 1.0", (float,), _read_decimal, lambda v: 0.0 <= v <= 1.0
)
THRESHOLD = Kind(
    "a float from 0.0 (off) to below 1.0",
    (float,),
    _read_decimal,
    lambda value: 0.0 <= value < 1.0,
)
THREADS = Kind(
    "a power of two from 1 to 128",
    (int,),
    read_whole,
    lambda value: 1 <= value <= 128 and value.bit_count() == 1,
)


RESERVE = Kind(
    "a float above 0 (of the device's memory, as 1.125), bytes from 2 MiB (in text "
    "also 40GiB), or None",
    (float, int, NoneType),
    lambda text: (_read_decimal if {".", "e"} & {*text} else _read_size)(text),
    lambda v: 0.0 < v <= 64.0 if type(v) is float else _is_size(v, 2 * MIB),
)


def _read_divisions(text: str) -> Any:
    return _read_list(text) if text.startswith("[") else read_whole(text)


def _divisions(given: Any) -> Divisions:
    if isinstance(given, Divisions):
        return given
    if isinstance(given, str):
        given = _read_divisions(given)
    return Divisions.by_interval(given if isinstance(given, Mapping) else {">": given})


DIVISIONS = Kind(
    "a power of two, 0, or intervals in MiB with divisions, as [256:1,512:2,>:8], "
    "each once and > last",
    (Divisions,),
    _read_divisions,
    convert=_divisions,
)
