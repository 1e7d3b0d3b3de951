"""The one form of all bytes that are written: named sections of bytes.

    magic, version, count | name length, length, digest, name, body | ... | end

A file of `save`, a value in a folder, a manifest and a key are each such bytes; what is
no bytes by itself is canonical JSON in them. Reading rejects and never repairs: one
wrong bit anywhere, and nothing is read. No length is believed before it has been
compared with what is there.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Any, Final

from sapwood.errors import StoreError
from sapwood.tree.nests.plain import Json, from_text
from sapwood.units import Size

MAGIC: Final = b"sapwood\x00"
VERSION: Final = 2
"""Changes with this form, and with what the sections of a file mean."""

_HEADER: Final = struct.Struct("<8sII")
_SECTION: Final = struct.Struct("<IQ32s")


def join(sections: Mapping[str, bytes]) -> bytes:
    """Return sections as bytes, in the order of their names."""
    chunks = [_HEADER.pack(MAGIC, VERSION, len(sections))]
    for name, body in sorted(sections.items()):
        chunks += (_head(name, body), body)
    return b"".join(chunks)


def split(data: bytes, what: str = "") -> dict[str, bytes]:
    """Return the sections in bytes; the inverse of `join`.

    ``what`` names bytes of a store in messages; else they are a file's. Raises
    `StoreError` for anything that `join` would not have written.
    """
    count, at, sections, last = _count(data, what), _HEADER.size, dict[str, bytes](), ""
    for number in range(count):
        text, size, digest = _section(data, at, what)
        start = at + _SECTION.size + len(text)
        at = start + size
        if at > len(data):
            raise _damaged(what, "it ends early")
        body = data[start:at]
        _check_digest(text, body, digest, what)
        try:
            name = text.decode()
        except UnicodeDecodeError:
            raise _damaged(what, "the name of a section is no text") from None
        if number and name <= last:
            raise _damaged(what, f"section {name[:20]!r} is out of order")
        sections[name] = body
        last = name
    if at != len(data):
        raise _damaged(what, f"{len(data) - at} bytes follow its end")
    return sections


# One value in a file of its own, whose bytes are not copied to be written or read.


def seal(name: str, value: bytes) -> bytes:
    """Return what `join` puts before ``value``, where that is the only section."""
    return _HEADER.pack(MAGIC, VERSION, 1) + _head(name, value)


def sealed_size(name: str, size: int) -> Size:
    """Return the size of the file that holds ``size`` bytes under ``name``."""
    return Size(_HEADER.size + _SECTION.size + len(name.encode()) + size)


def check_size(name: str, head: bytes, left: int) -> tuple[bytes, bytes]:
    """Return the name and the digest in a head that ``left`` bytes follow.

    Raises `StoreError` where it was sealed for another name, or for more or fewer
    bytes: so a file that somebody made longer is not read to its end.
    """
    what = f"the stored {name}"
    count = _count(head, what)
    text, size, digest = _section(head, _HEADER.size, what)
    if count != 1 or text != name.encode():
        raise _damaged(what, "it was stored under another name")
    if left != size:
        raise _damaged(what, f"it holds {left} of {size} bytes")
    return text, digest


def accept(name: str, head: bytes, value: bytes) -> bytes:
    """Return ``value`` if it is what was sealed under ``name``, else as `check_size`.

    ``head`` is as much of the file as `seal` makes, ``value`` all the rest.
    """
    text, digest = check_size(name, head, len(value))
    _check_digest(text, value, digest, f"the stored {name}")
    return value


def _head(name: str, body: bytes) -> bytes:
    text = name.encode()
    return _SECTION.pack(len(text), len(body), _digest(text, body)) + text


def _count(data: bytes, what: str) -> int:
    """Return how many sections there are; raises where these bytes are not ours."""
    if not data.startswith(MAGIC[: len(data)]):
        raise refused(what, "was not written by sapwood, or is another version's")
    if len(data) < _HEADER.size:
        raise _damaged(what, "it ends early")
    _, version, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise refused(what, f"is of version {version}, and {VERSION} is read here")
    return int(count)


def _section(data: bytes, at: int, what: str) -> tuple[bytes, int, bytes]:
    """Return the name, the size and the digest of the section whose head is there."""
    end = at + _SECTION.size
    if len(data) < end:
        raise _damaged(what, "it ends early")
    length, size, digest = _SECTION.unpack_from(data, at)
    if length > len(data) - end:
        raise _damaged(what, "it ends early")
    return data[end : end + length], size, digest


def _check_digest(name: bytes, body: bytes, digest: bytes, what: str) -> None:
    if _digest(name, body) != digest:
        raise _damaged(what, "a digest is wrong")


def _digest(name: bytes, body: bytes) -> bytes:
    digest = hashlib.sha256(struct.pack("<I", len(name)) + name)
    digest.update(body)
    return digest.digest()


def _damaged(what: str, how: str) -> StoreError:
    return refused(what, f"is damaged: {how}")


def refused(what: str, how: str) -> StoreError:
    """Return the error of bytes not taken: ``what`` of a store, or else a file's."""
    if what:
        return StoreError(
            f"{what} {how}. Nothing needs doing: it counts as absent, and the next put "
            "writes it anew"
        )
    return StoreError(f"the file {how}. Save it again with this version of sapwood")


# JSON in sections.


def read(text: bytes, form: Any, what: str) -> Json:
    """Return the JSON of ``text``; `StoreError` where it is not of ``form``.

    A form is a type, ``object`` for any; ``[form]``, a list of any length;
    ``(form, ...)``, a list of just these; ``{name: form}``, a dict of just these; and
    ``{str: form}``, a dict of any names.
    """
    found = from_text(text)
    expect(_fits(found, form), what)
    return found


def _fits(found: Json, form: Any) -> bool:
    if isinstance(form, type):
        return form is object or type(found) is form
    if isinstance(form, dict):
        if type(found) is not dict:
            return False
        if str in form:
            return all(_fits(each, form[str]) for each in found.values())
        return found.keys() == form.keys() and all(
            _fits(found[name], form[name]) for name in form
        )
    if type(found) is not list:
        return False
    if isinstance(form, list):
        return all(_fits(each, form[0]) for each in found)
    return len(found) == len(form) and all(map(_fits, found, form))


def expect(condition: bool, what: str) -> None:
    """Raise `StoreError` where data are not as they were written."""
    if not condition:
        raise StoreError(f"a recording is damaged: {what}. Record it anew")


def within(value: Json, end: int, least: int = 0) -> int:
    """Return a number from ``least`` up to ``end``; else raise `StoreError`."""
    expect(type(value) is int and least <= value < end, "a number")
    number: int = value
    return number
