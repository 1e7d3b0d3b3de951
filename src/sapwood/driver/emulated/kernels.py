"""Kernels of the emulated device: Python functions over packed parameter bytes.

A module image is any bytes; `register_module` says which kernels it stands for, once
per process. Kernels address memory as a GPU does, by addresses in their parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sapwood.driver.api import Pointer
from sapwood.driver.results import Refusal, Result

__all__ = ["Kernel", "Module", "find_module", "refusal", "register_module"]


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
        raise Refusal(
            Result.INVALID_IMAGE,
            f"no kernels are known for the image {image[:24]!r} ({len(image)} bytes): "
            "call register_module with it first",
        )
    return kernels


def refusal(kernel: Kernel, params: bytes, error: Exception) -> Refusal:
    """Return why a kernel that met an error in its parameters does not take them."""
    return Refusal(
        Result.INVALID_VALUE,
        f"kernel {kernel.name} does not take these {len(params)} bytes of parameters "
        f"({error}): pack them as it says",
    )
