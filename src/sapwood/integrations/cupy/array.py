"""`Array`: CuPy's array, with matrix products that can be captured, and host reads.

What is computed from an `Array` is one again, so that ``numpy.asarray(y)`` works on
it. Everything else is CuPy's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import cupy
import numpy as np

from sapwood.integrations.cupy.memory import Memory, Place, pointer, reach
from sapwood.integrations.cupy.products import product
from sapwood.memory.device import Device
from sapwood.memory.storage import Storage
from sapwood.tree import session
from sapwood.units import Size

__all__ = ["Array", "from_host"]

_HOST_DATA: Final = (
    "Make the array outside the graphed function and pass it in, or make "
    "it in a function marked with @sw.eager"
)
_HOST_READ: Final = (
    "Return the array, or compute it outside the graphed function, or "
    "in a function marked with @sw.eager"
)
_METHODS: Final = (
    "__getitem__",
    "all",
    "any",
    "argmax",
    "argmin",
    "argpartition",
    "argsort",
    "astype",
    "choose",
    "clip",
    "compress",
    "conj",
    "conjugate",
    "copy",
    "cumprod",
    "cumsum",
    "diagonal",
    "flatten",
    "max",
    "mean",
    "min",
    "nanmax",
    "nanmin",
    "nonzero",
    "prod",
    "ptp",
    "ravel",
    "repeat",
    "reshape",
    "round",
    "searchsorted",
    "squeeze",
    "std",
    "sum",
    "take",
    "trace",
    "transpose",
    "var",
)
"""Methods of CuPy's that return arrays, which are `Array` here."""


class Array(cupy.ndarray):  # type: ignore[misc]
    """An array of CuPy's; ``numpy.asarray(x)`` reads its values on the host.

    A graphed function may not read them, and cannot: that is refused by line.
    """

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError(
                "the host cannot see device memory without a copy; leave copy=False "
                "away"
            )
        host = self.get()
        return host if dtype is None else host.astype(dtype, copy=False)

    def get(self, *args: Any, **options: Any) -> Any:
        """Return the values on the host; CuPy says what the arguments are."""
        watching = session.current()
        if watching is not None:
            watching.refuse("a value is needed on the host", _HOST_READ)
        if type(self.data.mem) is Memory:
            self.data.mem.storage.check()
        return super().get(*args, **options)

    def __index__(self) -> int:
        index: int = self.get().__index__()
        return index

    def __repr__(self) -> str:
        if type(self.data.mem) is Memory and self.data.mem.storage.stale is not None:
            about = f"shape={self.shape}, dtype={self.dtype}"
            return f"sapwood.Array({about}, stale: {self.data.mem.storage.stale})"
        return repr(self.get())

    def __str__(self) -> str:
        return str(self.get())

    @property
    def address(self) -> int:
        """Where the first element lies."""
        address: int = self.data.ptr
        return address

    @property
    def storage(self) -> Any:
        """What the memory belongs to, shared by all views."""
        memory = self.data.mem
        return memory.storage if type(memory) is Memory else memory

    @property
    def span(self) -> tuple[int, int]:
        """The bytes ``[lo, hi)`` that the elements lie in."""
        low, high = reach(self.shape, self.strides, self.itemsize)
        return self.address + low, self.address + high

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.ndim:
            _host_data(f"x[...] = an array of {value.shape}")
            value = cupy.asarray(value)
        super().__setitem__(index, value)

    def __matmul__(self, other: Any) -> Any:
        return product(self, other, super().__matmul__)

    def __rmatmul__(self, other: Any) -> Any:
        return product(other, self, lambda _: super(Array, self).__rmatmul__(other))

    def dot(self, other: Any, out: Any = None) -> Any:
        """Return the matrix product with ``other``, into ``out`` if given."""
        return _dot(self, other, out)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **options: Any
    ) -> Any:
        if ufunc is np.matmul and method == "__call__" and not options:
            return inputs[0] @ inputs[1]
        return _ours(super().__array_ufunc__(ufunc, method, *inputs, **options))

    def __array_function__(
        self, function: Any, types: Any, args: Any, options: Any
    ) -> Any:
        if function is np.dot:
            return _dot(*args, **options)
        # CuPy wants to see no types but its own.
        kinds = tuple(cupy.ndarray if t is Array else t for t in types)
        return _ours(super().__array_function__(function, kinds, args, options))


def _ours(found: Any) -> Any:
    """Return what CuPy returned, its arrays seen as `Array`."""
    if type(found) is cupy.ndarray:
        return found.view(Array)
    if type(found) in (list, tuple):
        return type(found)(map(_ours, found))
    return found


def _wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Array, *args: Any, **options: Any) -> Any:
        return _ours(method(self, *args, **options))

    return call


for _name in _METHODS:
    if hasattr(cupy.ndarray, _name):
        setattr(Array, _name, _wrapped(getattr(cupy.ndarray, _name)))


def _dot(a: Any, b: Any, out: Any = None) -> Any:
    plain = max(getattr(a, "ndim", 0), getattr(b, "ndim", 0)) > 2
    if out is None and not plain and min(np.ndim(a), np.ndim(b)):
        return a @ b
    return _ours(cupy.dot(a, b, out))


def _host_data(what: str) -> None:
    watching = session.current()
    if watching is not None:
        watching.refuse(
            f"host data enters the device ({what}), and replays would see the old data",
            _HOST_DATA,
        )


def from_host(device: Device, place: Place, host: Any) -> Array:
    """Return a device array with the values, dtype and memory order of ``host``.

    A device array of anybody's is copied on the device. Raises `CaptureError` for
    host values inside a warm-up or capture.
    """
    if hasattr(host, "__cuda_array_interface__"):
        return _copied(device, place, cupy.asarray(host))
    _host_data("rt.array(...)")
    data = np.array(host, order="K")
    storage, array = _room(device, place, data)
    if data.size:
        stream = device.stream()
        storage.order_write(stream)
        flat = data.ravel(order="K").view(np.uint8)
        device.driver.upload(storage.address, flat.data, stream.handle)
    return array


def _copied(device: Device, place: Place, source: Any) -> Array:
    _, array = _room(
        device,
        place,
        np.lib.stride_tricks.as_strided(
            np.empty(1, source.dtype), source.shape, source.strides, writeable=False
        ),
    )
    array[...] = source
    return array


def _room(device: Device, place: Place, like: Any) -> tuple[Storage, Array]:
    storage = device.allocate(Size(like.nbytes))
    at = pointer(storage, storage.address, place)
    strides = np.empty_like(like, subok=False).strides
    return storage, Array(like.shape, like.dtype, at, strides)
