"""Kernels of the emulated device: Python functions over packed parameter bytes.

A module image is any bytes; `register_module` says which kernels it stands for, once
per process. Kernels address memory as a GPU does, by addresses in their parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from sapwood.driver.api import Pointer
from sapwood.driver.results import Result, invalid_value

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: how its parameters become a call, and which addresses they hold.

    ``bind`` decodes parameter bytes once and returns what runs the kernel. It may
    make views of the memory that keep nothing alive, but must not touch it.
    ``pointers`` names every address in the parameters and the bytes touched there.
    """

    name: str
    bind: Callable[[bytes], Callable[[], None]]
    pointers: Callable[[bytes], tuple[Pointer, ...]]

    def taken(self, take: Callable[[bytes], T], params: bytes) -> T:
        """Return what ``take`` makes of parameters, which it may not understand."""
        try:
            return take(params)
        except (RecursionError, MemoryError):
            raise  # no fault of the parameters
        except Exception as error:
            raise invalid_value(
                f"kernel {self.name} does not take these {len(params)} bytes of "
                f"parameters ({error}): pack them as it says"
            ) from error


@dataclass(slots=True)
class Module:
    """A loaded module; its kernels may run until it is unloaded."""

    kernels: dict[str, Kernel]
    loaded: bool = True


_images: dict[bytes, dict[str, Kernel]] = {}


def register_module(image: bytes, kernels: Iterable[Kernel]) -> None:
    """Say which kernels ``image`` holds, for all emulated devices of this process.

    Registering an image again replaces its kernels for modules loaded later.
    """
    _images[bytes(image)] = {kernel.name: kernel for kernel in kernels}


def find_module(image: bytes) -> dict[str, Kernel]:
    """Return the kernels of a registered image, by name."""
    kernels = _images.get(bytes(image))
    if kernels is None:
        raise Result.INVALID_IMAGE.refusal(
            f"no kernels are known for the image {image[:24]!r} ({len(image)} bytes): "
            "call register_module with it first"
        )
    return kernels
