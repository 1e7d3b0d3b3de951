"""Files, read and written so that no warm-up hears of it.

For laws about what guards do not see. It is C that calls, and not the user's code.
"""

from __future__ import annotations

import os

__all__ = ["exists", "read", "write"]


def exists(path: str | os.PathLike[str]) -> bool:
    """Return whether there is a file."""
    return next(map(os.access, [path], [os.F_OK]))


def read(path: str | os.PathLike[str]) -> bytes:
    """Return what is in a small file."""
    file = next(map(os.open, [path], [os.O_RDONLY]))
    held = next(map(os.read, [file], [4096]))
    next(map(os.close, [file]))
    return held


def write(path: str | os.PathLike[str] | int, data: bytes) -> None:
    """Have a file, by its path or number, hold these bytes, or take them in."""
    if isinstance(path, int):
        next(map(os.write, [path], [data]))
        return
    file = next(map(os.open, [path], [os.O_WRONLY | os.O_CREAT | os.O_TRUNC]))
    next(map(os.write, [file], [data]))
    next(map(os.close, [file]))
