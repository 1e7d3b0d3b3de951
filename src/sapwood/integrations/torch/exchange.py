"""Torch's table of functions by which C looks at tensors, as DLPack 1.3 has it."""

from __future__ import annotations

import ctypes
import functools
from typing import Final

import torch

__all__ = ["exchange_table"]

_NAME: Final = b"dlpack_exchange_api"
_VERSION: Final = (1, 3)

# A prototype of our own: what is set on ctypes.pythonapi's function is set for all.
_pointer_of: Final = ctypes.PYFUNCTYPE(
    ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p
)(("PyCapsule_GetPointer", ctypes.pythonapi))


@functools.cache
def exchange_table() -> int | None:
    """Return the address of the table; None where this torch has none like it.

    Source: DLPackExchangeAPI of dlpack.h, whose layout stays within a major version.
    """
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    table: int = _pointer_of(capsule, _NAME)
    major, minor = (ctypes.c_uint32 * 2).from_address(table)
    return table if major == _VERSION[0] and minor >= _VERSION[1] else None
