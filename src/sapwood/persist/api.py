"""What a store is: four methods over bytes with names.

`StoreError` says that what lay under a name is damaged, `OSError` that the store
cannot be reached, written or trusted. `Entries` is where both of them stop.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import getattr_static
from typing import Final, Protocol

from sapwood.errors import MisuseError, SapwoodError
from sapwood.units import Size, size_text

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,126}")


@dataclass(frozen=True, slots=True)
class Item:
    """One stored value: its ``name``, its ``size``, and when it was last used.

    ``used`` is in nanoseconds since the epoch.
    """

    name: str
    size: Size
    used: int


class Store(Protocol):
    """Bytes by name, kept as long as there is room.

    A name is 1 to 127 of ``a-z``, ``0-9``, ``.`` and ``-``, the first of them a letter
    or digit; others are a `MisuseError`. Every method may be called from any thread
    and raises `OSError` where the place of the bytes refuses.
    """

    def get(self, name: str) -> bytes | None:
        """Return exactly what was put under ``name``, or None; this is a use of it.

        Raises `StoreError` where what lies there is damaged: it is moved aside where
        that can be done, and the next `put` heals it.
        """

    def put(self, name: str, value: bytes) -> None:
        """Keep ``value`` under ``name``: all of it, or what was there before.

        Makes room first: what was used longest ago goes first, and no blob goes before
        the manifests that name it. Raises `OSError` with ``EFBIG`` for a value that
        is larger than the whole store may be, a manifest's blobs included, and with
        ``EAGAIN`` for a manifest of which a blob is not here (any more).
        """

    def delete(self, name: str) -> bool:
        """Forget ``name``; return whether there was anything to forget."""

    def scan(self) -> Iterator[Item]:
        """Yield what is here, in any order; others may change it meanwhile."""


def is_store(value: object) -> bool:
    """Return whether ``value`` may have what a store is asked for; it is asked nothing.

    One that passes on what it is asked for has whatever the other one has.
    """
    if isinstance(value, type):
        return False
    wanted = ("delete", "get", "put", "scan")
    return hasattr(type(value), "__getattr__") or all(
        getattr_static(value, name, None) is not None for name in wanted
    )


def is_name(text: str) -> bool:
    """Return whether ``text`` may be the name of a value."""
    return _NAME.fullmatch(text) is not None


def check_name(name: str) -> None:
    """Raise `MisuseError` where ``name`` may not be the name of a value."""
    if not is_name(name):
        raise MisuseError(
            f"{name!r} names nothing in a store. Use 1 to 127 of a-z, 0-9, '.' and "
            "'-', a letter or digit first"
        )


def too_large(name: str, size: int, limit: int) -> OSError:
    """Return the error of a value that is larger than a whole store may be."""
    return OSError(
        errno.EFBIG,
        f"{name} takes {size_text(size)} in all, and the store keeps "
        f"{size_text(limit)}. Give it a higher limit",
    )


def incomplete(name: str) -> OSError:
    """Return the error of a manifest of which a blob is not stored."""
    return OSError(
        errno.EAGAIN,
        f"{name} names what is not stored (any more). Put all of it again",
    )


@contextmanager
def reached(path: str) -> Iterator[None]:
    """Raise `OSError` for whatever a store, or its client, raises inside."""
    try:
        yield
    except (OSError, SapwoodError):
        raise
    except Exception as error:  # each client has errors of its own
        said = f"{path} fails: {type(error).__qualname__}: {error}"
        raise OSError(said) from error
