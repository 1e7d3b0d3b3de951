"""Manifests: the small value that says which key an entry has and what it is made of.

Contents lie beside it as blobs, named by their SHA-256, so that entries share them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sapwood.errors import MisuseError, StoreError
from sapwood.persist.format import join, read, split
from sapwood.persist.key import Key, decode_key, encode_key
from sapwood.tree.nests.plain import to_text
from sapwood.units import Size

__all__ = [
    "BLOB",
    "ENTRY",
    "Manifest",
    "Part",
    "blob_name",
    "decode_manifest",
    "describe",
    "encode_manifest",
    "entry_name",
    "needs",
]

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
    return Manifest(
        key,
        tuple(
            Part(name, Size(len(value)), blob_name(value))
            for name, value in parts.items()
        ),
    )


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
