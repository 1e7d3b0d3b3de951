"""What tells two tensors apart but their addresses, and which are not taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from sapwood.tree.call.integration import host_array, reach

KINDS: tuple[type, ...] = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""The classes of tensors that are arrays; others say what happens to them themselves.

A layout names one by its place here.
"""

REQUIRES_GRAD, LEAF, CONJUGATE, NEGATIVE, _INFERENCE = 1, 2, 4, 8, 16
_ALIGNED = 16

Layout = tuple[tuple[int, ...], tuple[int, ...], Any, int, int, int]
"""Shape, strides, dtype, alignment, flags, and the class."""


class Template(NamedTuple):
    """What a tensor looks like: ``look`` as torch's own constructor takes it."""

    look: dict[str, Any]
    flags: int
    kind: int


def look_of(tensor: Any, offset: int = 0) -> dict[str, Any]:
    """Return a tensor's size, stride and dtype, and where it begins in a storage."""
    return {
        "size": tuple(tensor.shape),
        "stride": tensor.stride(),
        "dtype": tensor.dtype,
        "storage_offset": offset,
    }


def flags_of(tensor: Any) -> int:
    """Return what autograd and lazy views make of a tensor, as bits."""
    flags = LEAF if tensor.is_leaf else 0
    if tensor.requires_grad:
        flags |= REQUIRES_GRAD
    if tensor.is_conj():
        flags |= CONJUGATE
    if tensor.is_neg():
        flags |= NEGATIVE
    if tensor.is_inference():
        flags |= _INFERENCE
    return flags


def is_lazy(tensor: Any) -> bool:
    """Return whether the values of a tensor are not what lies in its memory."""
    return bool(tensor.is_conj() or tensor.is_neg())


def alignment(address: int) -> int:
    """Return what an address is a multiple of, as far as that matters."""
    return address & -address if address & (_ALIGNED - 1) else _ALIGNED


def layout_of(tensor: Any) -> Layout:
    """Return all that tells a tensor from others, but its address."""
    return (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        alignment(tensor.data_ptr()),
        flags_of(tensor),
        KINDS.index(type(tensor)),
    )


def length_of(tensor: Any) -> int:
    """Return the number of bytes that the elements lie in, from the first."""
    if tensor.is_contiguous():
        size: int = tensor.nbytes
        return size
    return extent_of(tensor.shape, tensor.stride(), tensor.element_size())[1]


def extent_of(
    shape: Sequence[int], strides: Sequence[int], itemsize: int
) -> tuple[int, int]:
    """Return the bytes ``[lo, hi)`` of all elements, from the first."""
    return reach(shape, [itemsize * step for step in strides], itemsize)


def text(tensor: Any) -> str:
    """Return a tensor's dtype and shape."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def refusal_of(value: object, kind: str) -> str | None:
    """Say why a value may not be an argument; ``kind`` of device tensors are taken."""
    if not isinstance(value, torch.Tensor):
        cls = type(value)
        if (cls.__module__, cls.__qualname__) == ("numpy", "ndarray"):
            return host_array(f"{value.dtype}{list(value.shape)}")  # type: ignore[attr-defined]
        if hasattr(cls, "__cuda_array_interface__"):
            return (
                f"an array of {cls.__module__} is an argument of a graphed function "
                "whose runtime has torch's tensors. Pass torch.from_dlpack(x), or make "
                'the runtime with arrays="cupy"'
            )
        return None
    what = f"a tensor {text(value)}" if value.layout is torch.strided else "a tensor"
    if type(value) not in KINDS:
        return (
            f"{what} of {type(value).__qualname__}, a subclass of torch.Tensor, is an "
            "argument of a graphed function. Pass x.as_subclass(torch.Tensor)"
        )
    if value.layout is not torch.strided:
        return (
            f"{what} of layout {value.layout} is an argument of a graphed function. "
            "Pass x.to_dense(), or its parts"
        )
    if value.is_quantized:
        return (
            f"{what} is quantized, and an argument of a graphed function. Pass "
            "x.dequantize(), or x.int_repr()"
        )
    if value.device.type != kind:
        return (
            f"{what} on {value.device} is an argument of a graphed function. Move it "
            f'to the device first, x.to("{kind}"), or pass a number, x.item()'
        )
    return None
