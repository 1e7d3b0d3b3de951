"""What is written in C, and the one place which loads it.

It is built when the package is installed (`build`); nothing is compiled later. Where it
was not built, calls are decided in Python every time, and there are no segments.
"""

from __future__ import annotations

import ctypes
import functools
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Final

from sapwood._fast import state
from sapwood.errors import MisuseError
from sapwood.version import __version__

__all__ = ["native", "path", "segments", "trouble"]

_BUILD: Final = "python -m sapwood._fast.build"


@functools.cache
def native() -> ModuleType | None:
    """Return guards and replays; None where they are not built for this version.

    They know the classes of `_state`, and no others.
    """
    return _loaded() if state.is_native else None


def _loaded() -> ModuleType | None:
    try:
        found = import_module("sapwood._fast._native")
    except ImportError:
        return None
    return found if __version__ == found.VERSION else None


@functools.cache
def segments() -> ctypes.CDLL:
    """Return what serves segments, called without the interpreter's lock.

    Raises `MisuseError` where it was not built, or cannot be loaded.
    """
    try:
        return ctypes.CDLL(str(path("_segments")))
    except OSError as error:
        raise MisuseError(_said_of(path("_segments"), error)) from error


def path(name: str) -> Path:
    """Return where a library is, if it was built for this interpreter."""
    return Path(__file__).with_name(f"{name}{EXTENSION_SUFFIXES[0]}")


def trouble() -> str | None:
    """Return what is not as it could be, and what to do about it; None: all is well."""
    for name in ("_state", "_native", "_segments"):
        try:
            ctypes.PyDLL(str(path(name)))
        except OSError as error:
            return _said_of(path(name), error)
    if native() is None:
        return f"what is in C is not of version {__version__}. Run {_BUILD}"
    return None


def _said_of(path: Path, error: OSError) -> str:
    if path.exists():
        return f"{path} cannot be loaded ({error}). Remove it, and run {_BUILD}"
    return (
        f"{path} is missing: it is built when sapwood is installed, where there is a C "
        f"compiler with Python's headers. Install gcc or clang, and run {_BUILD}"
    )
