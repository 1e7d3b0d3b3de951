"""Length-prefixed fields: how keys and manifests become bytes and come back.

Numbers are eight bytes, little-endian. Reading rejects and never repairs: no length
is believed before it has been compared with what is there.
"""

from __future__ import annotations

import struct
from typing import Final

from sapwood.errors import StoreError

__all__ = ["Fields", "prefixed"]

_NUMBER: Final = struct.Struct("<Q")


def prefixed(value: bytes) -> bytes:
    """Return ``value`` behind its length."""
    return _NUMBER.pack(len(value)) + value


class Fields:
    """Takes fields off ``data``, one after the other.

    ``what`` names the data in messages. Every method raises `StoreError` where the
    data do not hold what is asked for.
    """

    def __init__(self, data: bytes, what: str) -> None:
        self._data, self._what = data, what
        self._at = 0

    def exactly(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        if size > len(self._data) - self._at:
            raise self.malformed(f"ends inside a field of {size} bytes")
        start, self._at = self._at, self._at + size
        return self._data[start : self._at]

    def number(self) -> int:
        """Return the next number."""
        return int(_NUMBER.unpack(self.exactly(_NUMBER.size))[0])

    def count(self, least: int) -> int:
        """Return a number of fields of which each takes at least ``least`` bytes."""
        count = self.number()
        if count * least > len(self._data) - self._at:
            raise self.malformed(f"cannot hold {count} fields")
        return count

    def value(self) -> bytes:
        """Return the next length-prefixed bytes."""
        return self.exactly(self.number())

    def text(self) -> str:
        """Return the next length-prefixed text: UTF-8, printable, not empty."""
        value = self.value()
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = ""
        if not text or not text.isprintable():
            raise self.malformed(f"holds {value[:40]!r} where text belongs")
        return text

    def end(self) -> None:
        """Raise where anything is left."""
        if left := len(self._data) - self._at:
            raise self.malformed(f"has {left} bytes too many")

    def malformed(self, how: str) -> StoreError:
        """Return the error that says ``how`` the data are not what they should be."""
        return StoreError(f"{self._what} {how}. Delete it: the next put writes it anew")
