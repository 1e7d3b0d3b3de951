"""What tells two tensors apart but their addresses, and which are not taken."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch

from sapwood.tree.call.integration import host_array, reach, text_of

KINDS: tuple[type, ...] = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""The classes of tensors that are arrays; others say what happens to them themselves.

A layout names one by its place here.
"""

_REQUIRES_GRAD, _LEAF, CONJUGATE, NEGATIVE, _INFERENCE, _SPENT = 1, 2, 4, 8, 16, 32
ALIGNED = 16


class Layout(NamedTuple):
    """What a tensor looks like; strides are in elements, ``kind`` is its class."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    aligned: int
    flags: int
    kind: int

    def __str__(self) -> str:
        return tuple.__repr__(self)

    @property
    @lru_cache(4096)  # noqa: B019 - of values, which are no one's
    def extent(self) -> tuple[int, int]:
        """The bytes that the elements lie in, from the first one's."""
        size = self.dtype.itemsize
        return reach(self.shape, [size * step for step in self.strides], size)

    @property
    def wants_grad(self) -> bool:
        """Whether a tensor that a replay makes requires grad: one that was a leaf."""
        return bool(self.flags & _REQUIRES_GRAD and self.flags & _LEAF)

    @property
    def is_spent(self) -> bool:
        """Whether a gradient was sent back through a tensor, and none can be again."""
        return bool(self.flags & _SPENT)

    @property
    def is_inference(self) -> bool:
        """Whether a tensor was made in inference mode."""
        return bool(self.flags & _INFERENCE)

    @property
    def is_plain(self) -> bool:
        """Whether a tensor is all that its storage and its mode say.

        One that required grad, was no leaf and is not spent leads nowhere: a replay's
        requires none.
        """
        return not (self.is_spent or self.is_special)

    @property
    def is_special(self) -> bool:
        """Whether a tensor is lazy, of a class of its own, or a leaf."""
        lazy = self.flags & (CONJUGATE | NEGATIVE)
        return bool(self.kind or lazy or self.wants_grad)

    def packed(self, data: bytes) -> bytes:
        """Return the bytes of all elements in C order, of those they lie in."""
        size = self.dtype.itemsize
        steps = [size * step for step in self.strides]
        return np.ndarray(self.shape, f"V{size}", data, 0, steps).tobytes()


_spent: WeakValueDictionary[int, Any] = WeakValueDictionary()
spent: Final[Callable[[Any], Any]] = torch._C._functions.DelayedError(
    "Trying to backward through the graph a second time: the graphed function that "
    "returned this tensor has sent its gradient back, and what that needs is gone",
    1,
)
"""Returns a tensor like a leaf, which torch sends no gradient back through."""


def note_spent(tensor: Any) -> None:
    """Note that a gradient was sent back through a tensor."""
    _spent[id(tensor)] = tensor


def flags_of(tensor: Any) -> int:
    """Return what autograd and lazy views make of a tensor, as bits."""
    flags = _LEAF if tensor.is_leaf else 0
    if tensor.requires_grad:
        flags |= _REQUIRES_GRAD
        if _spent.get(id(tensor)) is tensor:
            flags |= _SPENT
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
    return address & -address if address & (ALIGNED - 1) else ALIGNED


def layout_of(tensor: Any, address: int) -> Layout:
    """Return all that tells a tensor from others, but its address."""
    return Layout(
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        alignment(address),
        flags_of(tensor),
        KINDS.index(type(tensor)),
    )


def refusal_of(value: object, kind: str) -> str | None:
    """Say why a value may not be an argument; ``kind`` of device tensors are taken."""
    if not isinstance(value, torch.Tensor):
        cls = type(value)
        if (cls.__module__, cls.__qualname__) == ("numpy", "ndarray"):
            return host_array(value)
        if hasattr(cls, "__cuda_array_interface__"):
            return (
                f"an array of {cls.__module__} is an argument of a graphed function "
                "whose runtime has torch's tensors. Pass torch.from_dlpack(x), or make "
                'the runtime with arrays="cupy"'
            )
        return None
    what = f"a tensor {text_of(value)}" if value.layout is torch.strided else "a tensor"
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
