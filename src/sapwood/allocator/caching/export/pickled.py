"""Pickles of plain data only: written for other tools, read without running anything.

A pickle that names any class or function is refused before that is looked up.
"""

from __future__ import annotations

import io
import pickle  # noqa: TID251  PyTorch's tools read nothing else; see `_Plain`
from typing import Any, NoReturn

from sapwood.errors import MisuseError

# What the unpickler raises for bytes that no pickler wrote.
_DAMAGE = (
    *(pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError),
    *(LookupError, MemoryError, RecursionError, TypeError, ValueError),
)


def dump_plain(data: object) -> bytes:
    """Return a pickle of dicts, lists, tuples, texts, numbers, truths and None."""
    return pickle.dumps(data, protocol=4)


def load_plain(data: bytes) -> Any:
    """Return the plain data of a pickle.

    Raises `MisuseError` for a pickle that names code, and for a damaged one.
    """
    try:
        return _Plain(io.BytesIO(data)).load()
    except _DAMAGE as error:
        raise MisuseError(
            f"the pickle cannot be read: {error}. Use the file as it was written"
        ) from None


class _Plain(pickle.Unpickler):
    """An unpickler that knows no names, so that nothing in a file can be called."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise MisuseError(
            f"the pickle names {module}.{name}: only plain data is read, as a name may "
            "be of any code. Write it without annotations that are objects"
        )

    def persistent_load(self, pid: object) -> NoReturn:
        raise MisuseError(
            f"the pickle refers to {pid!r} outside itself. Write it as plain data"
        )
