"""Values crossing between host and device.

Neither can be repeated by a replay, so a session in progress is told before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sapwood.integrations.numpy import layout as layouts
from sapwood.integrations.numpy.faced import A, Faced
from sapwood.integrations.numpy.launch import empty
from sapwood.memory.device import Device
from sapwood.tree.record.host_data import READ_OUTSIDE
from sapwood.tree.watch import session
from sapwood.units import Size

__all__ = [
    "constant",
    "download",
    "is_host_array",
    "upload",
]


def is_host_array(value: object) -> bool:
    """Return whether ``value`` is host data rather than a plain number."""
    return isinstance(value, np.ndarray) and value.ndim > 0


def constant(value: Any, name: str) -> Any:
    """Return an operand as kernels take it: an array, a number or a 0-d constant.

    Raises `TypeError`, naming the function ``name``, for host arrays and for dtypes
    that device arrays cannot have.
    """
    if isinstance(value, (Faced, bool, int, float, complex)):
        if isinstance(value, np.generic):
            layouts.check_dtype(value.dtype)
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        if value.ndim == 0:
            layouts.check_dtype(value.dtype)
            return value
        kind = f"a host array of shape {value.shape}"
    else:
        kind = f"a {type(value).__name__}"
    raise TypeError(
        f"numpy.{name} of a sapwood array does not take {kind}; bring host data to "
        "the device with rt.array(...) first"
    )


def upload(kind: type[A], device: Device, host: Any) -> A:
    """Return a device array with the values, dtype and memory order of ``host``.

    Raises `TypeError` for a dtype that device arrays cannot have.
    """
    data = np.array(host, order="K")
    array = empty(kind, device, layouts.layout_of(data))
    if data.size:
        flat = data.ravel(order="K").view(np.uint8)
        stream = device.stream()
        array.storage.order_write(stream)
        device.driver.upload(array.storage.address, flat.data, stream.handle)
    return array


def download(array: Faced, what: str, remedy: str = READ_OUTSIDE) -> layouts.Array:
    """Return the values on the host, in an array of the same memory order.

    Waits for them. ``what`` is how the user asked, for the session to refuse.
    """
    watching = session.current()
    if watching is not None:
        watching.refuse(f"{what} needs a value on the host", remedy)
    array.storage.check()
    low, high = array.span
    if low == high:
        return np.empty(array.shape, array.dtype)
    stream = array.device.stream()
    array.storage.order_read(stream)
    driver = array.device.driver
    data = driver.download(low, Size(high - low), stream.handle)
    seen: layouts.Array = np.ndarray(
        array.shape, array.dtype, data, array.address - low, array.strides
    )
    return seen.copy(order="K")
