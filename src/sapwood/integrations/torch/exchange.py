"""How C looks at torch's tensors: as DLPack 1.3 has it, and a quicker way."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any, Final

import torch

__all__ = ["data_of_tensors", "exchange_table"]

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


@functools.cache
def data_of_tensors() -> tuple[int, int] | None:
    """Return what tells C where a tensor's elements are, and what of it to pass.

    That is the address of a function of torch's stable C interface, and how many bytes
    into Python's object of a tensor there is torch's own, which it takes. None where
    either cannot be found, or does not tell the truth.

    Source: aoti_torch_get_data_ptr of torch/csrc/inductor/aoti_torch/c/shim.h.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        data_of: Any = ctypes.CDLL(str(library)).aoti_torch_get_data_ptr
    except (OSError, AttributeError):
        return None
    tensors = _samples()
    places = [_places_of(each) for each in tensors]
    if len(places[0]) != 1 or any(each != places[0] for each in places):
        return None
    (inside,) = places[0]
    for each in tensors:
        found = ctypes.c_void_p()
        code = data_of(ctypes.c_void_p(id(each) + inside), ctypes.byref(found))
        if code or (found.value or 0) != each.data_ptr():
            return None
    return ctypes.cast(data_of, ctypes.c_void_p).value or 0, inside


def _samples() -> list[Any]:
    plain = torch.arange(6.0)
    kinds = plain, torch.nn.Parameter(plain), torch.nn.Buffer(plain)
    return [*kinds, plain[2:], plain.view(2, 3).t(), plain[:0]]


def _places_of(tensor: Any) -> list[int]:
    """Return where in its Python object the pointer to torch's tensor is."""
    word = ctypes.sizeof(ctypes.c_void_p)
    count = type(tensor).__basicsize__ // word
    words = (ctypes.c_uint64 * count).from_address(id(tensor))
    return [i * word for i, each in enumerate(words) if each == tensor._cdata]
