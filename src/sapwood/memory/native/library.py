"""The compiled library of segments."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Final

from sapwood import native

__all__ = ["SOURCE", "native_library", "native_path"]

SOURCE: Final = Path(__file__).with_name("segments.c")


def native_path() -> Path:
    """Return where the library is, compiling it now if it never was.

    Raises `MisuseError` where it is not compiled and cannot be.
    """
    return native.native_path(SOURCE)


@functools.cache
def native_library() -> ctypes.CDLL:
    """Return the library, whose calls run without the interpreter's lock.

    Raises as `native_path` does.
    """
    return ctypes.CDLL(str(native_path()))
