"""CuPy's arrays on a GPU.

Functions of ``cupy.ndarray`` are recorded through CuPy's own allocator hook and
stream; `Array`, what ``rt.array`` makes, adds NumPy's way to the host. What CuPy cannot
do in a capture is done otherwise there, with the same bits.
"""

from __future__ import annotations

from typing import Any

from sapwood.driver.api import Driver
from sapwood.driver.cuda import declare_unread
from sapwood.errors import InternalError
from sapwood.integrations.cupy import accessors
from sapwood.integrations.cupy.array import Array, from_host
from sapwood.integrations.cupy.indexers import unread
from sapwood.integrations.cupy.integration import CupyIntegration
from sapwood.integrations.cupy.random import Generator, seeded
from sapwood.integrations.cupy.streams import CupyFramework
from sapwood.memory.device import Device

__all__ = [
    "Array",
    "Generator",
    "accessors",
    "array_from_host",
    "framework",
    "integration",
    "make_generator",
]

declare_unread(unread)


def framework(driver: Driver) -> CupyFramework:
    """Return CuPy as a device sees it."""
    return CupyFramework(driver.abilities.ordinal)


def integration(device: Device) -> CupyIntegration:
    """Return what the tree asks of this integration."""
    return CupyIntegration(device, _of(device))


def array_from_host(device: Device, host: Any) -> Array:
    """Return a device array with the values, dtype and memory order of ``host``.

    That may be a device array of anybody's: its values are copied. Raises
    `CaptureError` for host values inside a warm-up or capture.
    """
    return from_host(device, _of(device), host)


def make_generator(device: Device, seed: Any = None) -> Generator:
    """Return a generator seeded as ``numpy.random.Philox(seed)``."""
    return seeded(device, _of(device), seed)


def _of(device: Device) -> CupyFramework:
    found = device.framework
    if not isinstance(found, CupyFramework):
        raise InternalError(f"CuPy's arrays are on CuPy's devices, not on {found!r}")
    return found
