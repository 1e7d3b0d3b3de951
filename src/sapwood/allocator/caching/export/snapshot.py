"""A picture as JSON, and back: ``loads(dumps(picture)) == picture``.

The schema is in docs/allocator.md: a mapping for each class of `picture`, of its
fields by their names. Stacks are written once and named by their number. `loads`
checks every value; whether the picture keeps the allocator's laws is `validate`'s
matter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from sapwood.allocator.caching.picture import Frame, Picture
from sapwood.driver.api import StreamHandle
from sapwood.errors import MisuseError, shown
from sapwood.units import Addr, Size

_NAME, _VERSION = "sapwood.allocator", 1
_FORMAT = {"format": _NAME, "version": _VERSION}
_FRAMES, _STACK = "frames", "stack"
"""The field that has a stack's frames, and that for the number of it."""

_Frames = tuple[Frame, ...]

_MOST = 1 << 64


@dataclass(frozen=True, slots=True)
class Item:
    """One value of parsed data, and its ``path`` from the top.

    Each method returns what it is named after, or raises `MisuseError`.
    """

    value: Any
    path: str

    def refuse(self, wanted: str) -> MisuseError:
        """Return the error that says what was ``wanted`` here instead."""
        return MisuseError(
            f"{self.path} is {shown(self.value)}, not {wanted}. Use the file as it was "
            "written"
        )

    def integer(self, least: int = 0) -> int:
        """Return a whole number in ``[least, 2**64)``."""
        if type(self.value) is not int or not least <= self.value < _MOST:
            raise self.refuse(f"a whole number from {least}")
        return self.value

    def text(self) -> str:
        """Return a text."""
        if type(self.value) is not str:
            raise self.refuse("a text")
        return self.value

    def switch(self) -> bool:
        """Return a truth value."""
        if type(self.value) is not bool:
            raise self.refuse("true or false")
        return self.value

    def plain(self) -> str | bool | int | float | None:
        """Return a value without parts."""
        if self.value is not None and type(self.value) not in {str, bool, int, float}:
            raise self.refuse("a plain value")
        plain: str | bool | int | float | None = self.value
        return plain

    def choice(self, words: Collection[str]) -> Any:
        """Return one of ``words``."""
        if type(self.value) is not str or self.value not in words:
            raise self.refuse(f"one of {', '.join(words)}")
        return self.value

    def items(self, length: int | None = None) -> list[Item]:
        """Return the parts of a list, of that ``length`` if it is given."""
        if type(self.value) not in {list, tuple}:
            raise self.refuse("a list")
        if length is not None and len(self.value) != length:
            raise self.refuse(f"a list of {length}")
        return [Item(part, f"{self.path}[{at}]") for at, part in enumerate(self.value)]

    def members(self) -> dict[str, Item]:
        """Return the values of a mapping by their names."""
        mapping = self._mapping()
        return {name: Item(mapping[name], f"{self.path}.{name}") for name in mapping}

    def part(self, name: str, *usual: object) -> Item:
        """Return the value of a name in a mapping; the usual one where it has none."""
        mapping = self._mapping()
        if name not in mapping and not usual:
            raise self.refuse(f"a mapping with {name}")
        return Item(mapping.get(name, *usual), f"{self.path}.{name}")

    def record(self, *names: str) -> dict[str, Item]:
        """Return the values of a mapping that has exactly these ``names``."""
        members = self.members()
        if missing := [name for name in names if name not in members]:
            raise self.refuse(f"a mapping with {', '.join(missing)}")
        if extra := sorted(members.keys() - set(names)):
            raise self.refuse(f"a mapping without {', '.join(extra)}")
        return members

    def _mapping(self) -> dict[str, Any]:
        if type(self.value) is not dict:
            raise self.refuse("a mapping")
        if not all(type(name) is str for name in self.value):
            raise self.refuse("a mapping with texts for names")
        return self.value


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
        why = str(error).partition(";")[0]  # what follows is for programmers
        raise MisuseError(
            f"the snapshot is no JSON: {why}. Use the file as it was written"
        ) from None
    if {"functions", "recordings"} <= top.members().keys():
        raise MisuseError(
            "this is a runtime's snapshot, not an allocator's: `sapwood report` draws "
            "it. Pass what sapwood.allocator.dumps wrote"
        )
    found = {name: top.value[name] for name in _FORMAT if name in top.members()}
    if found != _FORMAT:
        raise MisuseError(
            f"the snapshot says {shown(found)}, not format {_NAME!r} version "
            f"{_VERSION}. Read it with the release that wrote it, or write it again"
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
