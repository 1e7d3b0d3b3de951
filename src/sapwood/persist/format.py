"""Named sections of bytes in one file, each behind its length and with its digest.

    magic, version, count | name, length, digest, body | name, ... | end of the file

Reading rejects and never repairs: one wrong bit anywhere, and nothing is read.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Final

from sapwood.errors import StoreError

__all__ = ["MAGIC", "VERSION", "join", "split"]

MAGIC: Final = b"sapwood\x00"
VERSION: Final = 1

_HEADER: Final = struct.Struct("<8sII")
_SECTION: Final = struct.Struct("<IQ32s")


def join(sections: Mapping[str, bytes]) -> bytes:
    """Return sections as one file, in the order of their names."""
    chunks = [_HEADER.pack(MAGIC, VERSION, len(sections))]
    for name, body in sorted(sections.items()):
        text = name.encode()
        chunks += (_SECTION.pack(len(text), len(body), _digest(text, body)), text, body)
    return b"".join(chunks)


def split(data: bytes) -> dict[str, bytes]:
    """Return the sections of a file; the inverse of `join`.

    Raises `StoreError` for anything that `join` would not have written.
    """
    if len(data) < _HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise StoreError("this is no file of sapwood's: use one that save() wrote")
    _, version, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise StoreError(
            f"the file is of version {version}, and {VERSION} is read here: save it "
            "again with this version of sapwood"
        )
    at, sections = _HEADER.size, {}
    last = ""
    for number in range(count):
        name, body, at = _section(data, at)
        if number and name <= last:
            raise _damaged(f"section {name[:20]!r} is out of order")
        sections[name] = body
        last = name
    if at != len(data):
        raise _damaged(f"{len(data) - at} bytes follow its end")
    return sections


def _section(data: bytes, at: int) -> tuple[str, bytes, int]:
    if len(data) - at < _SECTION.size:
        raise _damaged("it ends early")
    name_size, size, digest = _SECTION.unpack_from(data, at)
    at += _SECTION.size
    if name_size + size > len(data) - at:
        raise _damaged("it ends early")
    text = data[at : at + name_size]
    body = data[at + name_size : at + name_size + size]
    if _digest(text, body) != digest:
        raise _damaged("a digest is wrong")
    try:
        return text.decode(), body, at + name_size + size
    except UnicodeDecodeError:
        raise _damaged("the name of a section is no text") from None


def _digest(name: bytes, body: bytes) -> bytes:
    digest = hashlib.sha256(struct.pack("<I", len(name)) + name)
    digest.update(body)
    return digest.digest()


def _damaged(how: str) -> StoreError:
    return StoreError(f"the file is damaged: {how}. Save it again")
