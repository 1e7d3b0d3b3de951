"""What becomes of devices where the process forks, or ends."""

from __future__ import annotations

import atexit
import os
from typing import Protocol
from weakref import WeakSet

__all__ = ["watch"]


class Device(Protocol):
    """What can be closed, and told that it is another process's."""

    def close(self) -> None: ...
    def orphan(self) -> None: ...


_devices: WeakSet[Device] = WeakSet()


def watch(device: Device) -> None:
    """Close a device when the process ends; a forked child has no use of it."""
    _devices.add(device)


def _orphan_devices() -> None:
    for device in list(_devices):
        device.orphan()


def _close_devices() -> None:
    for device in list(_devices):
        device.close()


os.register_at_fork(after_in_child=_orphan_devices)
# CUDA outlives the interpreter, and may call host functions until it is told to end.
atexit.register(_close_devices)
