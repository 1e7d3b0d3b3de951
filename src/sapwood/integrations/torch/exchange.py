"""How C looks at torch's tensors: as DLPack 1.3 has it, and a quicker way."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

_NAME: Final = b"dlpack_exchange_api"
_VERSION: Final = (1, 3)
_TOLD: Final = "data_ptr", "dim", "sizes", "strides", "dtype"
_DTYPES: Final = (
    *(torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16),
    *(torch.bfloat16, torch.float64, torch.complex64),
)

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
def looks_of_tensors() -> tuple[tuple[int, ...], int] | None:
    """Return what tells C what a tensor looks like, and what of it to pass.

    Those are addresses of functions of torch's stable C interface, of where its
    elements are, its dimensions, shape, strides and dtype, and how many bytes into
    Python's object of a tensor there is torch's own, which they take. None where one of
    them cannot be found, or does not tell the truth.

    Source: aoti_torch_get_data_ptr and others of
    torch/csrc/inductor/aoti_torch/c/shim.h.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        found = ctypes.CDLL(str(library))
        functions = [getattr(found, f"aoti_torch_get_{name}") for name in _TOLD]
    except (OSError, AttributeError):
        return None
    tensors = _samples()
    places = [_places_of(each) for each in tensors]
    if len(places[0]) != 1 or any(each != places[0] for each in places):
        return None
    (inside,) = places[0]
    numbers: dict[Any, int] = {}
    for each in tensors:
        *looks, number = _told(functions, each, inside) or [None]
        if looks != [each.data_ptr(), tuple(each.shape), each.stride()]:
            return None
        if numbers.setdefault(each.dtype, number) != number:
            return None
    if len({*numbers.values()}) < len(numbers):
        return None
    return tuple(ctypes.cast(each, ctypes.c_void_p).value or 0 for each in functions), (
        inside
    )


def _told(functions: Sequence[Any], tensor: Any, inside: int) -> list[Any] | None:
    """Return what the functions say of a tensor; None where one of them refuses."""
    data, dims, dtype = ctypes.c_void_p(), ctypes.c_int64(), ctypes.c_int32()
    shape, strides = (ctypes.POINTER(ctypes.c_int64)() for _ in range(2))
    results: list[Any] = [data, dims, shape, strides, dtype]
    at = ctypes.c_void_p(id(tensor) + inside)
    pairs = zip(functions, results, strict=True)
    if any(function(at, ctypes.byref(result)) for function, result in pairs):
        return None
    lengths = [tuple(each[: dims.value]) for each in (shape, strides)]
    return [data.value or 0, *lengths, dtype.value]


def _samples() -> list[Any]:
    plain = torch.arange(6.0)
    kinds = plain, torch.nn.Parameter(plain), torch.nn.Buffer(plain)
    views = plain[2:], plain.view(2, 3).t(), plain[:0], plain.view(1, 6, 1)[..., 0]
    return [*kinds, *views, *(plain.to(dtype) for dtype in _DTYPES)]


def _places_of(tensor: Any) -> list[int]:
    """Return where in its Python object the pointer to torch's tensor is."""
    word = ctypes.sizeof(ctypes.c_void_p)
    count = type(tensor).__basicsize__ // word
    words = (ctypes.c_uint64 * count).from_address(id(tensor))
    return [i * word for i, each in enumerate(words) if each == tensor._cdata]
