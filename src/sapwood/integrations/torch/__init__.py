"""Torch's tensors on a GPU.

Functions of tensors and modules are captured by torch itself, whole training steps
among them, and replayed as they were captured.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, Final

import torch

from sapwood.driver.api import Driver
from sapwood.driver.results import no_device
from sapwood.errors import MisuseError
from sapwood.integrations.torch import accessors as accessors
from sapwood.integrations.torch.asking import notice_askers
from sapwood.integrations.torch.capture import TorchCapturer
from sapwood.integrations.torch.constants import Bringing
from sapwood.integrations.torch.gradients import notice_pushes
from sapwood.integrations.torch.integration import TorchIntegration
from sapwood.integrations.torch.modes import notice_settings
from sapwood.integrations.torch.scheduling import notice_schedulers
from sapwood.integrations.torch.stepping import notice_steps
from sapwood.integrations.torch.storages import notice_stream_uses
from sapwood.integrations.torch.streams import TorchFramework
from sapwood.memory.device import Device
from sapwood.tree.record.host_data import host_data

__all__ = ["array_from_host", "capturer", "framework", "integration", "make_generator"]


_noticing: Final = Lock()
"""Held by whoever replaces functions of torch's, which is done once."""


def framework(driver: Driver) -> TorchFramework:
    """Return torch as a device sees it. Raises `NoDevice` where it is without CUDA."""
    if torch.version.cuda is None:
        raise no_device(
            "import torch",
            f"torch {torch.__version__} is built without CUDA: install one with it",
        )
    torch.cuda.init()
    with _noticing:
        notice_stream_uses()
        notice_askers()
        notice_settings()
        notice_pushes()
        notice_steps()
        notice_schedulers()
    return TorchFramework(torch.device("cuda", driver.abilities.ordinal))


def integration(device: Device) -> TorchIntegration:
    """Return what the tree asks of this integration."""
    place = torch.device("cuda", device.driver.abilities.ordinal)
    made = TorchIntegration(device, place)
    if isinstance(device.framework, TorchFramework):
        device.framework.storages = made.storages_of
        device.framework.bring = Bringing(device, place)
        made.storages_of.stream_of = device.framework.stream_of
    return made


def capturer(device: Device) -> TorchCapturer:
    """Return what has torch capture functions."""
    if not isinstance(device.framework, TorchFramework):
        raise MisuseError("this device is not of torch's tensors: make a new runtime")
    return TorchCapturer(device.framework)


def array_from_host(device: Device, host: Any) -> Any:
    """Return a tensor with the values and dtype of ``host``.

    Raises `CaptureError` for host values inside a warm-up or capture.
    """
    host_data("rt.array(...)")
    return torch.tensor(host, device=f"cuda:{device.driver.abilities.ordinal}")


def make_generator(device: Device, seed: int) -> Any:
    """Return a generator of torch's, seeded."""
    place = torch.device("cuda", device.driver.abilities.ordinal)
    return torch.Generator(place).manual_seed(seed)
