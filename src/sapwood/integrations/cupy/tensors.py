"""Torch's tensors in functions of CuPy's arrays: arguments, whose memory CuPy views.

Torch may view them there, too. What it computes on a GPU is in none of CuPy's captures,
and is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import cupy
import torch
from torch.utils._pytree import tree_leaves

from sapwood.integrations.dispatch import Mode
from sapwood.tree.watch import session

KIND: Final = 2
"""What a layout calls a tensor, behind the kinds of CuPy's arrays."""

_DTYPES: Final[Mapping[Any, Any]] = {
    getattr(torch, name): cupy.dtype(name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32"),
        *("int64", "float16", "float32", "float64", "complex64", "complex128"),
    )
}


def is_plain(value: Any, ordinal: int) -> bool:
    """Return whether a tensor is no more than an array of CuPy's on that GPU."""
    return (
        type(value) is torch.Tensor
        and value.device == torch.device("cuda", ordinal)
        and value.layout is torch.strided
        and value.dtype in _DTYPES
        and not (value.requires_grad or value.is_conj() or value.is_neg())
    )


def is_in_order(stream: int) -> bool:
    """Return whether torch's work is on a stream: nobody orders it with others."""
    return bool(torch.cuda.current_stream().cuda_stream == stream)


def viewed(tensor: Any) -> Any:
    """Return CuPy's view of a tensor; the memory is named by all of its storage."""
    whole, dtype = tensor.untyped_storage(), _DTYPES[tensor.dtype]
    base, ordinal = whole.data_ptr(), tensor.device.index
    memory = cupy.cuda.UnownedMemory(base, whole.nbytes(), whole, ordinal)
    at = cupy.cuda.MemoryPointer(memory, tensor.data_ptr() - base)
    strides = tuple(step * dtype.itemsize for step in tensor.stride())
    return cupy.ndarray(tuple(tensor.shape), dtype, at, strides)


def tensor_of(array: Any) -> Any:
    """Return torch's view of an array, on whatever stream that was written."""
    return torch.utils.dlpack.from_dlpack(array.__dlpack__(stream=-1))


@contextmanager
def watched(stream: int | None) -> Iterator[None]:
    """Refuse what torch computes on a GPU; it takes ``stream`` for its own, if any.

    So CuPy need not wait for torch where it views a tensor, which no capture may.
    """
    theirs = None if stream is None else torch.cuda.ExternalStream(stream)
    with torch.cuda.stream(theirs), _Refusing():
        yield


def resting() -> Callable[[], Any]:
    """Return what makes a context in which torch's stream is the one of now."""
    before = torch.cuda.current_stream()
    return lambda: torch.cuda.stream(before)


class _Refusing(Mode):
    """Refuses operations on tensors of a GPU that are more than views."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        watching, kwargs = session.current(), kwargs or {}
        if watching and not _is_view(func) and _is_on_gpu((args, kwargs)):
            watching.refuse(
                f"torch computes {func} on a GPU, in a function of CuPy's arrays",
                "Compute it outside of the function, or graph a function of tensors "
                "alone, with arrays='torch'",
            )
        return func(*args, **kwargs)


def _is_view(func: Any) -> bool:
    schema = func._schema  # noqa: SLF001 - where torch says what is a view
    made = [each.alias_info for each in schema.returns]
    return bool(made) and all(each and not each.is_write for each in made)


def _is_on_gpu(given: Any) -> bool:
    devices = [getattr(each, "device", each) for each in tree_leaves(given)]
    return any(isinstance(x, torch.device) and x.type == "cuda" for x in devices)
