"""Plain values as canonical text, and back: the same value is always the same text.

Values keep their type and every bit: 1, True and 1.0 differ, so do +0.0 and -0.0.
Reading rejects whatever is not written exactly so; it runs nothing.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from sapwood.errors import StoreError

Json: TypeAlias = Any
"""What `json` reads and writes: None, bool, int, str, lists and dicts of them."""

_DEPTH: Final = 100
_WORD: Final = (1 << 63) - 1
"""Larger integers are written in hex: reading decimals takes quadratic time."""

_double: Final = struct.Struct(">d")


def _hex(value: float) -> str:
    return _double.pack(value).hex()


def _real(text: str) -> float:
    return float(_double.unpack(bytes.fromhex(text))[0])


def _range(*numbers: Any) -> range:
    if not all(type(number) is int for number in numbers):
        raise ValueError("a range is of whole numbers")
    return range(*numbers)


def _bounds(value: Any) -> tuple[Any, ...]:
    return value.start, value.stop, value.step


_TEXTS: Final[
    dict[str, tuple[type, Callable[[Any], list[str]], Callable[..., Any]]]
] = {
    "int": (int, lambda value: [f"{value:x}"], lambda digits: int(digits, 16)),
    "float": (float, lambda value: [_hex(value)], _real),
    "complex": (
        complex,
        lambda value: [_hex(value.real), _hex(value.imag)],
        lambda real, imag: complex(_real(real), _real(imag)),
    ),
    "bytes": (bytes, lambda value: [value.hex()], bytes.fromhex),
    "...": (type(...), lambda _: [], lambda: ...),
}
"""Classes by their tags; how values are written in texts, and made of these."""
_NESTS: Final[dict[str, tuple[type, Callable[[Any], Any], Callable[..., Any]]]] = {
    "range": (range, _bounds, _range),
    "slice": (slice, _bounds, slice),
    "tuple": (tuple, iter, lambda *items: items),
    "list": (list, iter, lambda *items: [*items]),
}
"""The same of what is written in other values."""
_TAGS: Final = {cls: tag for tag, (cls, *_) in {**_TEXTS, **_NESTS}.items()}


def to_json(value: Any) -> Json:
    """Return a plain value as JSON; a tag in a list says what JSON does not know.

    Plain are None, ``...``, bool, int, float, complex, str, bytes, range, slice,
    tuple and list. Raises `ValueError` for any other, and where it is too deep.
    """
    return _fold(value, 0)


def _fold(value: Any, depth: int) -> Json:
    cls = type(value)
    if cls in (type(None), bool, str) or (cls is int and abs(value) <= _WORD):
        return value
    tag = _TAGS.get(cls)
    if tag is None or depth == _DEPTH:
        raise ValueError(f"a {cls.__qualname__} is no plain value")
    if tag in _TEXTS:
        return [tag, *_TEXTS[tag][1](value)]
    return [tag, *(_fold(part, depth + 1) for part in _NESTS[tag][1](value))]


def is_plain(value: Any) -> bool:
    """Return whether `to_json` takes a value."""
    try:
        to_json(value)
    except ValueError:
        return False
    return True


def from_json(found: Json) -> Any:
    """Return the value that `to_json` gave; `StoreError` for anything else."""
    try:
        value = _unfold(found, 0)
        same = to_json(value) == found
    except (ValueError, TypeError, struct.error) as error:
        raise StoreError(f"a plain value is unreadable: {error}") from None
    if not same:
        raise StoreError("a plain value is unreadable: it is written in another way")
    return value


def _unfold(found: Json, depth: int) -> Any:
    if type(found) in (type(None), bool, int, str):
        return found
    if type(found) is not list or not found or depth == _DEPTH:
        raise ValueError("a tag is missing")
    tag, *parts = found
    if type(tag) is str and tag in _NESTS:
        return _NESTS[tag][2](*(_unfold(part, depth + 1) for part in parts))
    if type(tag) is not str or tag not in _TEXTS:
        raise ValueError(f"there is no tag {str(tag)[:20]!r}")
    if not all(type(part) is str for part in parts):
        raise ValueError("digits are missing")
    return _TEXTS[tag][2](*parts)


def to_text(found: Json) -> bytes:
    """Return JSON as text, always the same for the same."""
    return json.dumps(
        found, separators=(",", ":"), sort_keys=True, allow_nan=False
    ).encode()


def from_text(text: bytes) -> Json:
    """Return what `to_text` wrote; `StoreError` for anything else."""
    try:
        found = json.loads(text, parse_constant=_refuse, parse_float=_refuse)
        why = "" if to_text(found) == text else "it is written in another way"
    except (ValueError, RecursionError) as error:
        why = str(error)
    if why:
        raise StoreError(f"text of {len(text)} bytes is unreadable: {why}")
    return found


def _refuse(text: str) -> Any:
    raise ValueError(f"{text[:20]} is not written so")
