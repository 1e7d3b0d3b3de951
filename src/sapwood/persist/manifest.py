"""Manifests: the small value that says which key an entry has and what it is made of.

Contents lie beside it as blobs, named by their SHA-256, so that entries share them.
A manifest ends with the SHA-256 of itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sapwood.errors import MisuseError, StoreError
from sapwood.persist.fields import Fields, prefixed
from sapwood.persist.key import Key, decode_key, encode_key
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

_MAGIC: Final = b"sapwood entry 1\n"
_DIGEST: Final = 32
_LEAST: Final = 8 + 8 + _DIGEST
"""Bytes that a part takes at least: the length of its name, a size, a digest."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the contents of an entry: ``digest`` is the SHA-256 of its bytes."""

    name: str
    size: Size
    digest: bytes

    @property
    def blob(self) -> str:
        """The name of the blob that holds the bytes."""
        return BLOB + self.digest.hex()


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
            Part(name, Size(len(value)), hashlib.sha256(value).digest())
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
    body = [
        _MAGIC,
        prefixed(encode_key(manifest.key)),
        len(manifest.parts).to_bytes(8, "little"),
    ]
    for part in manifest.parts:
        body += [prefixed(part.name.encode()), part.size.to_bytes(8, "little")]
        body.append(part.digest)
    said = b"".join(body)
    return said + hashlib.sha256(said).digest()


def decode_manifest(data: bytes) -> Manifest:
    """Return the manifest that ``data`` say; raise `StoreError` where they are none."""
    said, digest = data[:-_DIGEST], data[-_DIGEST:]
    fields = Fields(said, "a manifest")
    if fields.exactly(len(_MAGIC)) != _MAGIC:
        raise fields.malformed("is of another version, or none at all")
    if hashlib.sha256(said).digest() != digest:
        raise fields.malformed("is not what its digest says")
    key = decode_key(fields.value())
    parts = tuple(
        Part(fields.text(), Size(fields.number()), fields.exactly(_DIGEST))
        for _ in range(fields.count(_LEAST))
    )
    fields.end()
    if len({part.name for part in parts}) < len(parts):
        raise fields.malformed("names a part twice")
    return Manifest(key, parts)
