"""What the tree asks of a framework, answered for this room's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sapwood.errors import MisuseError
from sapwood.integrations.numpy.array import Array
from sapwood.integrations.numpy.kernels import check
from sapwood.integrations.numpy.layout import array_at, check_dtype
from sapwood.integrations.numpy.random import Generator
from sapwood.integrations.strided import Layout
from sapwood.memory.device import Device
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import (
    Files,
    Integration,
    LayoutProbe,
    Look,
    Probe,
    foreign_tensor,
    host_array,
    text_of,
)
from sapwood.tree.guards.constants import is_tensor
from sapwood.tree.nests.containers import register_container
from sapwood.units import Addr

# A generator is its state, an array: so a graphed function may be passed one.
register_container(
    Generator, lambda g: ([g.state], None), lambda _, children: Generator(*children)
)


_SOMEWHERE = 1 << 20
_DUMPED = [tuple, tuple, str, bool, bool]


def _load(plain: Any) -> Layout:
    """Return the layout that was dumped as a tuple."""
    if type(plain) is not tuple or [*map(type, plain)] != _DUMPED:
        raise ValueError("this describes no array")
    layout = Layout(*plain)
    dtype = np.dtype(layout.dtype)
    check_dtype(dtype)
    numbers = *layout.shape, *layout.strides
    whole = all(type(number) is int for number in numbers)
    # Not below zero: of one length, NumPy takes -1.
    if not whole or dtype.str != layout.dtype or any(n < 0 for n in layout.shape):
        raise ValueError("this describes no array")
    # NumPy knows its limits: lengths and strides go together, so many dimensions, so
    # many bytes. Nothing is read.
    array_at(_SOMEWHERE - layout.extent[0], layout)
    return layout


_TORCH: Final = (
    "Functions of PyTorch are recorded on a CUDA GPU; on the emulated device NumPy's "
    "are, of arrays that rt.array makes"
)


class NumpyIntegration(Integration):
    """The adapter of one device's NumPy-API arrays."""

    files = Files(tuple, _load, check)

    def __init__(self, device: Device) -> None:
        self.device = device

    def is_array(self, value: object) -> bool:
        """Return whether ``value`` is a device array."""
        return type(value) is Array

    def refuse(self, value: object) -> None:
        """Refuse host arrays: a copy of one would go unseen, and cost every call."""
        if type(value) is Array:
            if value.device is not self.device:
                raise MisuseError(
                    f"an array of another runtime, {text_of(value)}, is an argument of "
                    "a graphed function. Bring it over with rt.array(numpy.asarray(x))"
                )
        elif isinstance(value, np.ndarray):
            raise TypeError(host_array(value))
        elif is_tensor(value):
            raise TypeError(foreign_tensor(_TORCH))

    def look(self, array: Array) -> Look:
        """Return layout, storage and address."""
        return Look(array.layout, array.storage, Addr(array.address))

    def versions(self, arrays: Sequence[Array]) -> list[tuple[Any, int]]:
        """Return where each array is, and how often its storage was written."""
        return [(each.address, each.storage.writes) for each in arrays]

    def probe(self, arrays: Sequence[Array]) -> Probe:
        """Return what compares layouts, but of the same arrays: those stay."""
        return LayoutProbe(self, arrays)

    def make(self, layout: Layout, storage: Storage, address: Addr) -> Array:
        """Return an array of that layout."""
        return Array(storage, self.device, layout, address)
