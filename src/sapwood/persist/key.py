"""Keys: what an entry was made from, by label, and the digest that names it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from sapwood.errors import MisuseError, StoreError
from sapwood.persist.format import join, split

__all__ = ["Difference", "Key", "decode_key", "diff", "encode_key", "nearest"]


@dataclass(frozen=True)
class Key:
    """All that decides whether an entry may be used, as labelled components.

    Labels are printable, not empty and unique, else `MisuseError`. They are kept in
    sorted order: keys of equal components are equal, in whatever order they came.
    """

    components: tuple[tuple[str, bytes], ...]

    def __post_init__(self) -> None:
        for label, times in Counter(label for label, _ in self.components).items():
            if not label or not label.isprintable():
                raise MisuseError(
                    f"{label!r} cannot label a component. Use text that prints"
                )
            if times > 1:
                raise MisuseError(
                    f"{times} components are labelled {label!r}. Join them, or give "
                    "each a label of its own"
                )
        object.__setattr__(self, "components", tuple(sorted(self.components)))

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the key as bytes, as hex."""
        return hashlib.sha256(encode_key(self)).hexdigest()


@dataclass(frozen=True, slots=True)
class Difference:
    """A component in which two keys differ; None where one has no such component."""

    label: str
    ours: bytes | None
    theirs: bytes | None


def diff(ours: Key, theirs: Key) -> list[Difference]:
    """Return the components in which the keys differ, by label."""
    here, there = dict(ours.components), dict(theirs.components)
    return [
        Difference(label, here.get(label), there.get(label))
        for label in sorted(here.keys() | there.keys())
        if here.get(label) != there.get(label)
    ]


def nearest(ours: Key, others: Iterable[Key]) -> Key | None:
    """Return the key with the most components of ``ours``, the last of equals."""
    mine, found, most = set(ours.components), None, -1
    for key in others:
        equal = len(mine & set(key.components))
        if equal >= most:
            found, most = key, equal
    return found


def encode_key(key: Key) -> bytes:
    """Return the components as bytes; equal keys give equal bytes."""
    return join(dict(key.components))


def decode_key(data: bytes) -> Key:
    """Return the key that `encode_key` made ``data`` of; else raise `StoreError`."""
    try:
        return Key(tuple(split(data, "a stored key").items()))
    except MisuseError as error:
        raise StoreError(f"a stored key is damaged: {error}") from None
