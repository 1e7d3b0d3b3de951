"""The frame of a stored file: what makes damage show.

magic (8) · version (2) · length of the name (2) · length of the value (8) · SHA-256
of the fields before it, the name and the value (32) · name · value. The name is in
it, so that a file which was moved is no good under its new name.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

from sapwood.errors import StoreError
from sapwood.units import Size

__all__ = ["accept", "check_head", "frame_size", "seal"]

_MAGIC: Final = b"sapwood\n"
_VERSION: Final = 1
_FIELDS: Final = struct.Struct("<8sHHQ")
_DIGEST: Final = 32

_HEADER: Final = _FIELDS.size + _DIGEST
"""Bytes before the name."""


def frame_size(name: str, size: int) -> Size:
    """Return the size of the file that holds ``size`` bytes under ``name``."""
    return Size(_HEADER + len(name) + size)


def seal(name: str, value: bytes) -> bytes:
    """Return what goes before ``value`` in the file that holds it under ``name``."""
    fields = _FIELDS.pack(_MAGIC, _VERSION, len(name), len(value))
    return fields + _digest(fields, name.encode(), value) + name.encode()


def check_head(name: str, head: bytes, left: int) -> None:
    """Raise `StoreError` where ``left`` bytes are more than this head was sealed for.

    So a file that somebody made longer is not read to its end.
    """
    length = _length(name, head)
    if left > length:
        raise _damaged(name, f"it holds {left} of {length} bytes")


def accept(name: str, head: bytes, value: bytes) -> bytes:
    """Return ``value`` if it is what was sealed under ``name``.

    ``head`` is as much of the file as `seal` makes, ``value`` all the rest. Raises
    `StoreError` that says how it is not.
    """
    length = _length(name, head)
    fields, digest = head[: _FIELDS.size], head[_FIELDS.size : _HEADER]
    if length != len(value):
        raise _damaged(name, f"it holds {len(value)} of {length} bytes")
    if digest != _digest(fields, head[_HEADER:], value):
        raise _damaged(name, "it is not what its digest says")
    return value


def _length(name: str, head: bytes) -> int:
    """Return how many bytes were sealed; raises where they were no value of a name."""
    if len(head) < _HEADER + len(name):
        raise _damaged(name, "it ends inside its header")
    magic, version, named, length = _FIELDS.unpack(head[: _FIELDS.size])
    if magic != _MAGIC or version != _VERSION:
        raise _damaged(name, "it is of another version, or no file of a store")
    if head[_HEADER:] != name.encode() or named != len(name):
        raise _damaged(name, "it was stored under another name")
    return int(length)


def _digest(fields: bytes, name: bytes, value: bytes) -> bytes:
    digest = hashlib.sha256(fields)
    digest.update(name)
    digest.update(value)
    return digest.digest()


def _damaged(name: str, how: str) -> StoreError:
    return StoreError(
        f"the stored {name} is damaged: {how}. Nothing needs doing: it counts as "
        "absent, and the next put writes it anew"
    )
