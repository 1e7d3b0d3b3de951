"""Where the elements of an array lie: layouts, and NumPy arrays over addresses.

The ``kind`` of a layout is whether the array may be written. An array over an address
is made without touching the memory there; whether it may be read depends on who runs:
kernels may, the host never.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np

from sapwood.integrations.strided import Layout

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


KINDS: Final = "biufc"
_WRITEABLE: Final = 0x400
"""NPY_ARRAY_WRITEABLE."""


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Raise `TypeError` for a dtype that device arrays cannot have."""
    if dtype.kind not in KINDS or dtype.names is not None:
        raise TypeError(
            f"sapwood arrays do not support dtype {dtype}; use bool, an integer, "
            "float or complex dtype, and keep other data on the host"
        )


def layout_of(array: Array) -> Layout:
    """Return the layout of ``array``, which is not read."""
    flags = array.flags
    # NumPy warns of broadcast arrays where their flag is asked for by its name.
    writeable = flags.num & _WRITEABLE != 0
    return Layout(array.shape, array.strides, array.dtype.str, flags.aligned, writeable)


def address_of(array: Array) -> int:
    """Return the address of the first element of ``array``, which is not read."""
    address: int = array.__array_interface__["data"][0]
    return address


@lru_cache(4096)
def _window(layout: Layout) -> tuple[int, Any, np.dtype[Any]]:
    low, high = layout.extent
    return low, ctypes.c_char * (high - low), np.dtype(layout[2])


def array_at(address: int, layout: Layout) -> Array:
    """Return an array over the bytes at ``address``, which are not touched."""
    low, window, dtype = _window(layout)
    memory = window.from_address(address + low)
    array = np.ndarray(layout[0], dtype, memory, -low, layout[1])
    if not layout.kind:
        array.flags.writeable = False
    return array


def blank_at(_: int, layout: Layout) -> Array:
    """Return zeros of that layout in host memory; no address plays a part."""
    low, high = layout.extent
    memory = np.zeros(high - low, np.uint8)
    return np.ndarray(layout[0], layout[2], memory.data, -low, layout[1])
