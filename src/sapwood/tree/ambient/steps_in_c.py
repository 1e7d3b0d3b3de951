"""Steps as a built-in function, whose C is compiled once: half of Python's time.

Where that cannot be, nothing is said: the same steps run in Python.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sapwood.errors import MisuseError
from sapwood.native import native_path
from sapwood.tree.ambient.steps import Program

__all__ = ["SOURCE", "in_c", "is_suited", "maker"]

SOURCE: Final = Path(__file__).with_name("steps.c")

Maker = Callable[..., Callable[[], list[Any] | None]]


def in_c(program: Program) -> Callable[[], list[Any] | None] | None:
    """Return the steps as a function; None where no C can be compiled or used.

    It gives what the used arrays' slots hold, or None: it cannot be told so.
    """
    make = maker()
    if make is None:
        return None
    steps, found = tuple(program.steps), tuple(program.found)
    return make(steps, found, program.latest, program.registers)


@functools.cache
def maker() -> Maker | None:
    """Return what makes functions of steps, compiled now if it never was, or None."""
    abi = getattr(sys, "abiflags", "")
    if not is_suited(sys.implementation.name, abi, sys.maxsize):
        return None
    try:
        make: Any = ctypes.PyDLL(str(native_path(SOURCE))).sapwood_steps
    except (MisuseError, OSError):
        # No compiler, no folder, or an interpreter whose functions cannot be found.
        return None
    make.restype = ctypes.py_object
    make.argtypes = (*[ctypes.py_object] * 3, ctypes.c_ssize_t)
    return make  # type: ignore[no-any-return]


def is_suited(implementation: str, abi: str, largest: int) -> bool:
    """Return whether the C is written for such an interpreter.

    That is CPython of 64 bits, with a global lock and without checks of its own.
    """
    usual = implementation == "cpython" and largest == 2**63 - 1
    return usual and "d" not in abi and "t" not in abi
