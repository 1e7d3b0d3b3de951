"""Reading plain data from outside: every value checked, every error says where."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sapwood.errors import MisuseError

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
        shown = repr(self.value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return MisuseError(
            f"{self.path} is {shown}, not {wanted}. Use the file as it was written"
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
