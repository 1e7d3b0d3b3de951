"""Which device a runtime runs on: the one that was named, or the best that is here."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Final

from sapwood.driver.api import Abilities, Driver
from sapwood.driver.emulated import Emulated
from sapwood.errors import MisuseError, NoDevice
from sapwood.events import Event, Fallback
from sapwood.knobs import Knobs

__all__ = ["choose"]

_CUDA: Final = re.compile(r"cuda(?::([0-9]{1,4}))?")
_REMEDY: Final = 'Use device=None, "cuda:0" or "emulated"'
_said: set[str] = set()


def choose(
    device: str | Driver | None, settings: Knobs, emit: Callable[[Event], None]
) -> Driver:
    """Return the driver of a device; a name is opened, a `Driver` is returned.

    None is the first GPU, or else the emulated device, after a `Fallback` that says
    why. Raises `NoDevice` for a device that is not there, `MisuseError` for what is
    none.
    """
    name = (settings.device or None) if device is None else device
    if name is None:
        return _best(settings, emit)
    if name == "emulated":
        return _emulated(settings)
    if isinstance(name, str):
        found = _CUDA.fullmatch(name)
        if found is None:
            raise NoDevice(
                "Runtime", 100, "NO_DEVICE", f"there is no device {name!r}. {_REMEDY}"
            )
        return _cuda(int(found[1] or 0))
    if not isinstance(getattr(name, "abilities", None), Abilities):
        raise MisuseError(f"device={name!r} is no device. {_REMEDY}, or a Driver")
    return name


def _best(settings: Knobs, emit: Callable[[Event], None]) -> Driver:
    try:
        return _cuda(0)
    except NoDevice as error:
        reason = error.explanation
    emit(Fallback(reason))
    if reason not in _said:
        _said.add(reason)
        import logging

        logging.getLogger("sapwood").warning(
            "no CUDA device is used (%s); running on the emulated device, on the CPU",
            reason,
        )
    return _emulated(settings)


def _cuda(ordinal: int) -> Driver:
    from sapwood.driver.cuda import Cuda

    driver = Cuda(ordinal)
    # Asked last: without a GPU there is no need of it.
    if "torch" not in sys.modules and find_spec("cupy") is None:
        driver.close()
        raise NoDevice(
            "import cupy",
            100,
            "NO_DEVICE",
            f"{driver.abilities.name} is here, but CuPy, whose arrays run on it, is "
            "not installed: pip install 'sapwood[cupy]', or import torch before",
        )
    return driver


def _emulated(settings: Knobs) -> Driver:
    return Emulated(total=settings.emulated_memory, schedule=settings.emulated_schedule)
