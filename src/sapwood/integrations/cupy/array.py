"""`Array`: CuPy's array, with host reads.

What is computed from an `Array` is one again, so that ``numpy.asarray(y)`` works on
it. Everything else is CuPy's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import cupy
import numpy as np

from sapwood.integrations.cupy.constants import brought
from sapwood.integrations.cupy.memory import Memory, Place, pointer
from sapwood.memory.device import Device
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import reach
from sapwood.tree.record.host_data import host_data, is_constant
from sapwood.units import Size

_METHODS: Final = (
    *("__getitem__", "__matmul__", "astype", "copy", "conj", "conjugate", "dot"),
    *("all", "any", "max", "mean", "min", "nanmax", "nanmin", "prod", "ptp", "std"),
    *("sum", "trace", "var", "cumprod", "cumsum", "clip", "round", "nonzero"),
    *("argmax", "argmin", "argpartition", "argsort", "searchsorted"),
    *("choose", "compress", "repeat", "take"),
    *("diagonal", "flatten", "ravel", "reshape", "squeeze", "transpose"),
)
"""Methods of CuPy's that return arrays, which are `Array` here."""


class Array(cupy.ndarray):  # type: ignore[misc]
    """An array of CuPy's; ``numpy.asarray(x)`` reads its values on the host."""

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
        shown: str = super().__repr__()
        return shown

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
            if is_constant(value):
                value = brought(value)
            else:
                host_data(f"x[...] = an array of {value.shape}")
                value = cupy.asarray(value)
        super().__setitem__(index, value)

    def __rmatmul__(self, other: Any) -> Any:
        if isinstance(other, cupy.ndarray):
            return _ours(cupy.ndarray.__matmul__(other, self))
        return super().__rmatmul__(other)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **options: Any
    ) -> Any:
        return _ours(super().__array_ufunc__(ufunc, method, *inputs, **options))

    def __array_function__(
        self, function: Any, types: Any, args: Any, options: Any
    ) -> Any:
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


def _wrapped(name: str) -> Callable[..., Any]:
    @wraps(getattr(cupy.ndarray, name))
    def call(self: Array, *args: Any, **options: Any) -> Any:
        # Looked up by each call: in captures, some of CuPy's are others.
        return _ours(getattr(cupy.ndarray, name)(self, *args, **options))

    return call


for _name in _METHODS:
    if hasattr(cupy.ndarray, _name):
        setattr(Array, _name, _wrapped(_name))


KINDS: tuple[type, ...] = (Array, cupy.ndarray)
"""The kinds of arrays; a layout names one by its place here."""


def from_host(device: Device, place: Place, host: Any) -> Array:
    """Return a device array with the values, dtype and memory order of ``host``.

    A device array of anybody's is copied on the device. Raises `CaptureError` for
    host values inside a warm-up or capture.
    """
    if hasattr(host, "__cuda_array_interface__"):
        return _copied(device, place, cupy.asarray(host))
    if is_constant(host):
        made: Array = brought(np.array(host, order="K")).view(Array)
        return made
    host_data("rt.array(...)")
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
