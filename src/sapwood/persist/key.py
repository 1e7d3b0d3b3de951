"""Keys: what an entry was made from, by label, and the digest that names it."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from sapwood.errors import MisuseError, StoreError
from sapwood.persist.format import join, read, split
from sapwood.tree.nests.plain import to_text
from sapwood.units import Size


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


BLOB: Final = "blob-"
ENTRY: Final = "entry-"
"""Names of contents and of manifests begin so; a digest in hex follows."""

_BLOB: Final = re.compile(f"{BLOB}[0-9a-f]{{64}}")


@dataclass(frozen=True, slots=True)
class Part:
    """One of the contents of an entry, and the name of the blob that holds it."""

    name: str
    size: Size
    blob: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The key of an entry and its parts, in the order they were put."""

    key: Key
    parts: tuple[Part, ...]


def entry_name(digest: str) -> str:
    """Return the name of the manifest of the key with this digest."""
    return ENTRY + digest


def blob_name(value: bytes) -> str:
    """Return the name of the blob that holds ``value``."""
    return BLOB + hashlib.sha256(value).hexdigest()


def describe(key: Key, parts: Mapping[str, bytes]) -> Manifest:
    """Return the manifest of an entry of these parts.

    Raises `MisuseError` for the name of a part that is empty or does not print.
    """
    for name in parts:
        if not name or not name.isprintable():
            raise MisuseError(f"{name!r} cannot name a part. Use text that prints")
    rows = [Part(name, Size(len(v)), blob_name(v)) for name, v in parts.items()]
    return Manifest(key, tuple(rows))


def needs(name: str, value: bytes) -> dict[str, Size]:
    """Return the blobs that ``value`` needs where ``name`` is a manifest's, by name.

    What cannot be read as a manifest needs nothing: it is no use to anybody.
    """
    if not name.startswith(ENTRY):
        return {}
    try:
        return {part.blob: part.size for part in decode_manifest(value).parts}
    except StoreError:
        return {}


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as bytes."""
    rows = [[part.name, part.size, part.blob] for part in manifest.parts]
    return join({"key": encode_key(manifest.key), "parts": to_text(rows)})


def decode_manifest(data: bytes) -> Manifest:
    """Return the manifest that ``data`` say; raise `StoreError` where they are none."""
    sections = split(data, "a manifest")
    if sections.keys() != {"key", "parts"}:
        raise _malformed("has no key, or no parts")
    rows = read(sections["parts"], [(str, int, str)], "the parts of a manifest")
    parts = tuple(Part(name, Size(size), blob) for name, size, blob in rows)
    if not all(map(_is_whole, parts)):
        raise _malformed("has a part that no entry has")
    if len({part.name for part in parts}) < len(parts):
        raise _malformed("names a part twice")
    return Manifest(decode_key(sections["key"]), parts)


def _is_whole(part: Part) -> bool:
    named = part.name.isprintable() and part.name != ""
    return named and part.size >= 0 and _BLOB.fullmatch(part.blob) is not None


def _malformed(how: str) -> StoreError:
    return StoreError(f"a manifest {how}. Delete it: the next put writes it anew")
