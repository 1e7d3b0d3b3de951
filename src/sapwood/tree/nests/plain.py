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
    return [tag, *(_fold_part(part, depth) for part in _PARTS[tag](value))]


def _fold_part(part: Any, depth: int) -> Json:
    return part.text if type(part) is _Raw else _fold(part, depth + 1)


class _Raw:
    """Text that stands for itself behind a tag."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _float_text(value: float) -> _Raw:
    return _Raw(_double.pack(value).hex())


_TAGS: Final[dict[type, str]] = {
    int: "int",
    float: "float",
    complex: "complex",
    bytes: "bytes",
    range: "range",
    slice: "slice",
    tuple: "tuple",
    list: "list",
    type(...): "...",
}
_PARTS: Final[dict[str, Callable[[Any], Any]]] = {
    "int": lambda value: [_Raw(f"{value:x}")],
    "float": lambda value: [_float_text(value)],
    "complex": lambda value: [_float_text(value.real), _float_text(value.imag)],
    "bytes": lambda value: [_Raw(value.hex())],
    "range": lambda value: [value.start, value.stop, value.step],
    "slice": lambda value: [value.start, value.stop, value.step],
    "tuple": lambda value: value,
    "list": lambda value: value,
    "...": lambda _: [],
}


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
    if type(tag) is not str or tag not in _PARTS:
        raise ValueError(f"there is no tag {str(tag)[:20]!r}")
    if tag in {"tuple", "list"}:
        items = [_unfold(part, depth + 1) for part in parts]
        return tuple(items) if tag == "tuple" else items
    return _MAKERS[tag](*_checked(tag, parts, depth))


def _checked(tag: str, parts: list[Any], depth: int) -> list[Any]:
    if tag in {"range", "slice"}:
        if len(parts) != 3:
            raise ValueError("three numbers are missing")
        values = [_unfold(part, depth + 1) for part in parts]
        if tag == "range" and not all(type(value) is int for value in values):
            raise ValueError("a range is of whole numbers")
        return values
    if not all(type(part) is str for part in parts):
        raise ValueError("digits are missing")
    return parts


def _real(text: str) -> float:
    return float(_double.unpack(bytes.fromhex(text))[0])


def _ellipsis() -> Any:
    return ...


_MAKERS: Final[dict[str, Callable[..., Any]]] = {
    "int": lambda digits: int(digits, 16),
    "float": _real,
    "complex": lambda real, imag: complex(_real(real), _real(imag)),
    "bytes": bytes.fromhex,
    "range": range,
    "slice": slice,
    "...": _ellipsis,
}


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
