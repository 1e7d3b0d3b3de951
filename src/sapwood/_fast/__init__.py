"""What is written in C, and the one place which loads it.

It is built when the package is installed (`build`); nothing is compiled later. Where it
was not built, Python does the same, but for segments.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

from sapwood.errors import MisuseError
from sapwood.version import __version__

__all__ = ["FAST", "SEGMENTS", "is_suited", "library", "path", "segments", "trouble"]

FAST: Final = "_fast"
SEGMENTS: Final = "_segments"

_BUILD: Final = "python -m sapwood._fast.build"


@functools.cache
def library() -> ctypes.PyDLL | None:
    """Return guards and replays, called under the interpreter's lock.

    None, where they were not built or are not for this interpreter.
    """
    abi = getattr(sys, "abiflags", "")
    if not is_suited(sys.implementation.name, abi, sys.maxsize):
        return None
    try:
        return ctypes.PyDLL(str(path(FAST)))
    except OSError:
        # Not built, or an interpreter whose functions cannot be found.
        return None


@functools.cache
def segments() -> ctypes.CDLL:
    """Return what serves segments, called without the interpreter's lock.

    Raises `MisuseError` where it was not built, or cannot be loaded.
    """
    try:
        return ctypes.CDLL(str(path(SEGMENTS)))
    except OSError as error:
        raise MisuseError(_said_of(path(SEGMENTS), error)) from error


def path(name: str) -> Path:
    """Return where a library is, if it was built for this interpreter and version."""
    return Path(__file__).with_name(f"{name}-{__version__}{EXTENSION_SUFFIXES[0]}")


def trouble() -> str | None:
    """Return what is not as it could be, and what to do about it; None: all is well."""
    for name, kind in ((FAST, ctypes.PyDLL), (SEGMENTS, ctypes.CDLL)):
        try:
            kind(str(path(name)))
        except OSError as error:
            return _said_of(path(name), error)
    if library() is None:
        return "this Python does without: the C is for CPython with a global lock"
    return None


def is_suited(implementation: str, abi: str, largest: int) -> bool:
    """Return whether the C is written for such an interpreter.

    That is CPython of 64 bits, with a global lock and without checks of its own.
    """
    usual = implementation == "cpython" and largest == 2**63 - 1
    return usual and "d" not in abi and "t" not in abi


def _said_of(path: Path, error: OSError) -> str:
    if path.exists():
        return f"{path} cannot be loaded ({error}). Remove it, and run {_BUILD}"
    return (
        f"{path} is missing: it is built when sapwood is installed, where there is a C "
        f"compiler. Install gcc or clang, and run {_BUILD}"
    )
