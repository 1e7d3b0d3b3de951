"""A picture as JSON, and back: ``loads(dumps(picture)) == picture``.

The schema is in docs/allocator.md: a mapping for each class of `picture`, of its
fields by their names. Stacks are written once and named by their number. `loads`
checks every value; whether the picture keeps the allocator's laws is `validate`'s
matter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from sapwood.allocator.caching.export.strict import Item
from sapwood.allocator.caching.picture import Frame, Picture
from sapwood.driver.api import StreamHandle
from sapwood.errors import MisuseError
from sapwood.units import Addr, Size

_NAME, _VERSION = "sapwood.allocator", 1
_FORMAT = {"format": _NAME, "version": _VERSION}
_FRAMES, _STACK = "frames", "stack"
"""The field that has a stack's frames, and that for the number of it."""

_Frames = tuple[Frame, ...]


def dumps(picture: Picture, *, indent: int | None = None) -> str:
    """Return ``picture`` as JSON text of the present version."""
    stacks: dict[_Frames, int] = {(): 0}
    written = _FORMAT | _written(picture, stacks)
    written |= {"settings": dict(picture.settings), "stacks": list(stacks)}
    return json.dumps(written, indent=indent)


def _written(value: Any, stacks: dict[_Frames, int]) -> Any:
    if isinstance(value, tuple):
        return [_written(part, stacks) for part in value]
    if not is_dataclass(value):
        return value
    parts = {field.name: getattr(value, field.name) for field in fields(value)}
    if _FRAMES in parts:
        parts[_STACK] = stacks.setdefault(parts.pop(_FRAMES), len(stacks))
    return {name: _written(part, stacks) for name, part in parts.items()}


def loads(text: str) -> Picture:
    """Return the picture that `dumps` wrote.

    Raises `MisuseError` for what is no JSON, another format or version, and for any
    value that is missing, unknown or of the wrong kind, with its place.
    """
    try:
        top = Item(json.loads(text), "snapshot")
    except (ValueError, RecursionError) as error:
        raise MisuseError(
            f"the snapshot is no JSON: {error}. Use the file as it was written"
        ) from None
    found = {name: top.value[name] for name in _FORMAT if name in top.members()}
    if found != _FORMAT:
        raise MisuseError(
            f"the snapshot says {found}, not format {_NAME!r} version {_VERSION}. Read "
            "it with the release that wrote it, or write it again"
        )
    of = top.record(*_FORMAT, "stacks", *_hints(Picture))
    stacks: tuple[_Frames, ...] = _read(tuple[_Frames, ...], of["stacks"], ())
    picture: Picture = _read_fields(Picture, of, stacks)
    return picture


def _plain_values(item: Item) -> dict[str, object]:
    return {name: value.plain() for name, value in item.members().items()}


_LEAVES: Final[dict[Any, Callable[[Item], Any]]] = {
    bool: Item.switch,
    str: Item.text,
    **dict.fromkeys((int, Addr, Size, StreamHandle), Item.integer),
    Mapping[str, object]: _plain_values,
}

_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def _read(kind: Any, item: Item, stacks: tuple[_Frames, ...]) -> Any:
    """Return the value of a type that `picture` declares."""
    if kind in _LEAVES:
        return _LEAVES[kind](item)
    if is_dataclass(kind):
        names = (_STACK if name == _FRAMES else name for name in _hints(kind))
        return _read_fields(kind, item.record(*names), stacks)
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return item.choice(parts)
    if ... in parts:
        return tuple(_read(parts[0], part, stacks) for part in item.items())
    hints = parts or tuple(_hints(kind).values())
    values = zip(hints, item.items(len(hints)), strict=True)
    read = [_read(hint, part, stacks) for hint, part in values]
    return kind(*read) if not parts else tuple(read)


def _read_fields(kind: Any, of: dict[str, Item], stacks: tuple[_Frames, ...]) -> Any:
    values = {
        name: _read(hint, of[name], stacks)
        for name, hint in _hints(kind).items()
        if name != _FRAMES
    }
    if _STACK in of:
        number = of[_STACK].integer()
        if number >= len(stacks):
            raise of[_STACK].refuse(f"the number of one of {len(stacks)} stacks")
        values[_FRAMES] = stacks[number]
    return kind(**values)
