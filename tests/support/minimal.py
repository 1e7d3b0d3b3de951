"""The smallest framework that is recorded: flat buffers of float64, and four kernels.

It is the template for a new one: docs/internals/add-a-framework.md walks through it. A
framework of the library is such a module in `sapwood.integrations`.
"""

from __future__ import annotations

import ctypes
import operator
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn, Self

import numpy as np

from sapwood.driver.api import Driver, KernelOp, Pointer
from sapwood.driver.emulated.kernels import Kernel, register_module
from sapwood.errors import MisuseError
from sapwood.memory.device import Device
from sapwood.memory.framework import Framework
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import (
    Integration,
    LayoutProbe,
    Look,
    Probe,
    host_array,
)
from sapwood.tree.record.host_data import READ_OUTSIDE, host_data
from sapwood.tree.watch import session
from sapwood.units import Addr, Size

__all__ = ["Buffer", "array_from_host", "framework", "integration", "make_generator"]

_ITEM: Final = 8
"""The bytes of a float64."""

# 1. Kernels. A device runs them by name, with addresses in packed parameters.

_IMAGE: Final = b"tests.support.minimal"
_BUFFERS: Final = struct.Struct("<QQQQ")  # length, out, x, y
_NUMBER: Final = struct.Struct("<QQQd")  # length, out, x, and a number for y

_Binary = Callable[[float, float], float]


def _items(address: int, length: int) -> Any:
    # A view: a kernel is bound before it runs, and must not touch the memory then.
    return (ctypes.c_double * length).from_address(address)


def _with_buffer(function: _Binary, params: bytes) -> Callable[[], None]:
    length, out, x, y = _BUFFERS.unpack(params)
    outs, xs, ys = (_items(address, length) for address in (out, x, y))

    def run() -> None:
        outs[:] = [*map(function, xs, ys)]

    return run


def _with_number(function: _Binary, params: bytes) -> Callable[[], None]:
    length, out, x, number = _NUMBER.unpack(params)
    outs, xs = (_items(address, length) for address in (out, x))

    def run() -> None:
        outs[:] = [function(item, number) for item in xs]

    return run


def _pointers(count: int, params: bytes) -> tuple[Pointer, ...]:
    """Return the first addresses in parameters, and the bytes that are touched there.

    One that is left out is not relocated: the replay would use what lies there then.
    """
    length, *addresses = struct.unpack_from(f"<{count + 1}Q", params)
    return tuple(
        Pointer(_ITEM * (k + 1), at, Addr(at + _ITEM * length), writes=k == 0)
        for k, at in enumerate(map(Addr, addresses))
    )


register_module(
    _IMAGE,
    [
        Kernel(f"{name} {kind}", partial(bind, function), partial(_pointers, count))
        for name, function in (("add", operator.add), ("multiply", operator.mul))
        for kind, bind, count in (
            ("buffer", _with_buffer, 3),
            ("number", _with_number, 2),
        )
    ],
)


# 2. Arrays. Their work reaches the device in one place, `_launch`.


class Buffer:
    """So many float64 at an address of a storage, which slices share."""

    __slots__ = ("__weakref__", "address", "device", "length", "storage")

    dtype = "float64"

    def __init__(
        self, device: Device, storage: Storage, address: Addr, length: int
    ) -> None:
        self.device, self.storage = device, storage
        self.address, self.length = address, length

    @property
    def shape(self) -> tuple[int]:
        """The number of items; messages name arrays by dtype and shape."""
        return (self.length,)

    def __add__(self, other: Buffer | float) -> Buffer:
        return _launch("add", _empty(self.device, self.length), self, other)

    def __mul__(self, other: Buffer | float) -> Buffer:
        return _launch("multiply", _empty(self.device, self.length), self, other)

    def __iadd__(self, other: Buffer | float) -> Self:
        _launch("add", self, self, other)
        return self

    def __imul__(self, other: Buffer | float) -> Self:
        _launch("multiply", self, self, other)
        return self

    def __getitem__(self, part: slice) -> Buffer:
        start, stop, step = part.indices(self.length)
        if step != 1:
            raise ValueError("a slice of a buffer has no step; copy it on the host")
        address = Addr(self.address + _ITEM * start)
        return Buffer(self.device, self.storage, address, max(stop - start, 0))

    def __len__(self) -> int:
        return self.length

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        del copy
        # A replay runs no Python: a value that was read here would be read once.
        if (watching := session.current()) is not None:
            watching.refuse("numpy.asarray(x) needs a value on the host", READ_OUTSIDE)
        self.storage.check()
        stream, size = self.device.stream(), Size(_ITEM * self.length)
        self.storage.order_read(stream)
        data = self.device.driver.download(self.address, size, stream.handle)
        return np.frombuffer(data, np.float64).astype(dtype or np.float64, copy=False)


def _empty(device: Device, length: int) -> Buffer:
    # A capture routes it to its range, a warm-up to the heap.
    storage = device.allocate(Size(_ITEM * length))
    return Buffer(device, storage, storage.address, length)


def _launch(name: str, out: Buffer, x: Buffer, y: Buffer | float) -> Buffer:
    """Run a kernel on the current stream, which writes ``out``; return that."""
    device, ins = x.device, [x, y] if isinstance(y, Buffer) else [x]
    for each in (out, *ins):
        if each.device is not device:
            raise MisuseError("buffers of two runtimes; bring one over by the host")
        if each.length != out.length:
            raise ValueError(f"buffers of {out.length} and {each.length} items")
        each.storage.check()
    if isinstance(y, Buffer):
        kind, constants = "buffer", struct.pack("<Q", out.length)
        params = _BUFFERS.pack(out.length, out.address, x.address, y.address)
    else:
        kind, constants = "number", struct.pack("<Qd", out.length, y)
        params = _NUMBER.pack(out.length, out.address, x.address, y)
    function = device.function(_IMAGE, f"{name} {kind}")
    # A recording is held against its warm-up by what is told here: no addresses.
    if (watching := session.current()) is not None:
        watching.op(f"{name} {kind}", constants)
    stream = device.stream()
    for each in ins:
        each.storage.order_read(stream)
    out.storage.order_write(stream)
    device.driver.launch(KernelOp(function, params), stream.handle)
    return out


# 3. The integration: what the tree asks about arrays.


class _Layout(NamedTuple):
    """All that tells two buffers apart but where they are."""

    length: int

    @property
    def extent(self) -> tuple[int, int]:
        """The bytes of the items, counted from the first."""
        return 0, _ITEM * self.length

    def packed(self, data: bytes) -> bytes:
        """Return the bytes of all items: no others lie between them."""
        return data


class _Buffers(Integration):
    """The arrays of one device."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def is_array(self, value: object) -> bool:
        """Return whether a value is a buffer."""
        return type(value) is Buffer

    def refuse(self, value: object) -> None:
        """Refuse host arrays: what others write into one would go unseen."""
        if type(value) is Buffer and value.device is not self.device:
            raise MisuseError("a buffer of another runtime; bring it over by the host")
        if isinstance(value, np.ndarray):
            raise TypeError(host_array(value))

    def look(self, array: Buffer) -> Look:
        """Return what a buffer looks like, whose bytes it has, and where."""
        return Look(_Layout(array.length), array.storage, array.address)

    def probe(self, arrays: Sequence[Buffer]) -> Probe:
        """Return what compares layouts, but of the same buffers: those stay."""
        return LayoutProbe(self, arrays)

    def make(self, layout: _Layout, storage: Storage, address: Addr) -> Buffer:
        """Return a buffer over the output of a replay."""
        return Buffer(self.device, storage, address, layout.length)


# 4. What a runtime asks of the module.


def framework(driver: Driver) -> Framework:
    """Return the default: buffers have no streams and no allocator of their own."""
    del driver
    return Framework()


def integration(device: Device) -> Integration:
    """Return what the tree asks about a device's buffers."""
    return _Buffers(device)


def array_from_host(device: Device, host: Any) -> Buffer:
    """Return a buffer with the values of a flat host array.

    Raises `TypeError` for other shapes, `CaptureError` inside a warm-up or capture.
    """
    data = np.array(host, np.float64)
    if data.ndim != 1:
        raise TypeError(f"a buffer is flat, and this has {data.ndim} dimensions")
    host_data("rt.array")
    made, stream = _empty(device, data.size), device.stream()
    made.storage.order_write(stream)
    device.driver.upload(made.address, data.view(np.uint8).data, stream.handle)
    return made


def make_generator(device: Device, seed: Any = None) -> NoReturn:
    """Raise: there are no random buffers."""
    del device, seed
    raise TypeError("there are no random numbers here; draw them on the host")
