"""What the tree asks of a framework, answered for this room's arrays."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sapwood.errors import MisuseError
from sapwood.integrations.numpy.array import Array
from sapwood.integrations.numpy.kernels import check
from sapwood.integrations.numpy.layout import Layout, array_at, check_dtype, extent
from sapwood.integrations.numpy.random import Generator
from sapwood.memory.device import Device
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Integration, foreign_tensor, host_array
from sapwood.tree.guards.constants import is_tensor
from sapwood.tree.nests.containers import register_container
from sapwood.units import Addr

# A generator is its state, an array: so a graphed function may be passed one.
register_container(
    Generator,
    lambda generator: ([generator.state], None),
    lambda _, children: Generator(*children),
)


_SOMEWHERE = 1 << 20
_DUMPED = [tuple, tuple, str, bool, bool]


class Shape(NamedTuple):
    """What an array looks like; its face is kept for arrays at the same address."""

    face: Any
    layout: Layout
    address: int

    def __repr__(self) -> str:
        # The face's own would read device memory, which need not be there.
        return f"Shape({self.layout}, {self.address:#x})"


class NumpyIntegration(Integration):
    """The adapter of one device's NumPy-API arrays."""

    settled = True

    def __init__(self, device: Device) -> None:
        self.device = device

    def is_array(self, value: object) -> bool:
        """Return whether ``value`` is a device array."""
        return type(value) is Array

    def text(self, array: Array) -> str:
        """Return the array's dtype and shape."""
        return f"{array.dtype}{list(array.shape)}"

    def refusal(self, value: object) -> str | None:
        """Refuse host arrays: a copy of one would go unseen, and cost every call."""
        if isinstance(value, np.ndarray):
            return host_array(f"{value.dtype}{list(value.shape)}")
        if is_tensor(value):
            return foreign_tensor("rt.array(x.numpy(force=True))")
        return None

    def look(self, value: object) -> tuple[Hashable, Storage, Addr] | None:
        """Return layout, storage and first byte of an array."""
        if type(value) is not Array:
            return None
        if value.device is not self.device:
            raise MisuseError(
                f"an array of another runtime, {self.text(value)}, is an argument of a "
                "graphed function. Bring it over with rt.array(numpy.asarray(x))"
            )
        storage = value.storage
        if storage.stale is not None:
            storage.check()
        layout = value.layout
        low = value.address + extent(layout)[0]
        return layout, storage, Addr(low)

    def layout(self, array: Array) -> Hashable:
        """Return shape, strides, dtype, alignment and whether it is writeable."""
        array.storage.check()
        return array.layout

    def address(self, array: Array) -> Addr:
        """Return where the first element lies."""
        return Addr(array.address)

    def span(self, array: Array) -> tuple[Addr, Addr]:
        """Return the bytes that the elements lie in."""
        return array.span

    def storage(self, array: Array) -> Storage:
        """Return the storage that the array views."""
        return array.storage

    def versions(self, arrays: Sequence[Array]) -> list[int]:
        """Return how often the storage of each array was written."""
        return [each.storage.writes for each in arrays]

    def bits(self, array: Array) -> bytes:
        """Return the bytes of all elements in C order."""
        return bytes(np.asarray(array).tobytes())

    def template(self, array: Array) -> Shape:
        """Return the array's face without its storage."""
        return Shape(array.face, array.layout, array.address)

    def make(self, template: Shape, storage: Storage, address: Addr) -> Array:
        """Return an array like the template's."""
        if template.face is None or address != template.address:
            template = self.settle(template, address)
        return Array(storage, self.device, template.face, template.layout, address)

    def settle(self, template: Shape, address: Addr) -> Shape:
        """Return the template with a face at ``address``."""
        return Shape(array_at(address, template.layout), template.layout, address)

    def dump(self, template: Shape) -> tuple[Any, ...]:
        """Return a template as plain values."""
        return template.layout

    def load(self, plain: Any) -> Shape:
        """Return the template that `dump` gave."""
        if type(plain) is not tuple or [*map(type, plain)] != _DUMPED:
            raise ValueError("this describes no array")
        shape, strides, kind, *_ = plain
        dtype = np.dtype(kind)
        check_dtype(dtype)
        whole = all(type(number) is int for number in (*shape, *strides))
        # Not below zero: of one length, NumPy takes -1.
        if not whole or dtype.str != kind or any(length < 0 for length in shape):
            raise ValueError("this describes no array")
        # NumPy knows its limits: lengths and strides go together, so many dimensions,
        # so many bytes. Nothing is read.
        array_at(_SOMEWHERE - extent(plain)[0], plain)
        return Shape(None, plain, 0)

    def check_op(self, name: str, params: bytes) -> None:
        """Raise `ValueError` where a kernel would not take parameters like these."""
        check(name, params)

    def extent(self, template: Shape) -> tuple[int, int]:
        """Return the bytes that the elements lie in, from the first element."""
        return extent(template.layout)
