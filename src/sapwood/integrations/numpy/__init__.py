"""NumPy-API device arrays.

NumPy's functions and operators on an `Array` run as kernels on its device, with
results equal to NumPy's bit for bit, in dtype, shape and strides too.
"""

from __future__ import annotations

from typing import Any

from sapwood.driver.api import Driver
from sapwood.integrations.numpy.array import Array
from sapwood.integrations.numpy.copies import from_host
from sapwood.integrations.numpy.integration import NumpyIntegration
from sapwood.integrations.numpy.random import Generator, make_generator
from sapwood.memory.device import Device
from sapwood.memory.framework import Framework

__all__ = [
    "Array",
    "Generator",
    "array_from_host",
    "framework",
    "integration",
    "make_generator",
]


def framework(driver: Driver) -> Framework:
    """Return how a device sees these arrays: they ask it for everything."""
    del driver
    return Framework()


def integration(device: Device) -> NumpyIntegration:
    """Return what the tree asks of this integration."""
    return NumpyIntegration(device)


def array_from_host(device: Device, host: Any) -> Array:
    """Return a device array with the values, dtype and memory order of ``host``.

    Raises `TypeError` for dtypes that device arrays cannot have, and `CaptureError`
    inside a warm-up or capture.
    """
    return from_host(Array, device, host)
