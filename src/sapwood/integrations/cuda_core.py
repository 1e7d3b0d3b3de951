"""``cuda.core``: an allocator of this library as a memory resource."""

from __future__ import annotations

import inspect
from typing import Any

from sapwood.allocator.lending import Lender, imported
from sapwood.driver.streams import raw_of
from sapwood.errors import MisuseError


def library() -> Any:
    """Return ``cuda.core``. Raises `MisuseError` where it cannot be imported."""
    core = imported("cuda.core", "cuda.core", "cuda-core")
    if not hasattr(core, "MemoryResource"):
        raise MisuseError(
            "this cuda.core has no MemoryResource: install cuda-core 0.5 or newer"
        )
    return core


def resource(lender: Lender) -> Any:
    """Return a ``cuda.core.MemoryResource`` of the lender's GPU.

    Its buffers are freed in the order of the stream that they are closed on, and
    reused after the work of that one and of the one they were allocated on.
    """
    core = library()
    kind = type("SapwoodMemoryResource", (_Resource, core.MemoryResource), {})
    made: _Resource = kind()
    made.lender, made.buffer, made.device_id = lender, core.Buffer, lender.device
    # Since 1.1 a buffer wants to know the stream that it will be freed on.
    made.tells_stream = (
        "stream" in inspect.signature(core.Buffer.from_handle).parameters
    )
    return made


class _Resource:
    """What is asked of a resource; mixed with the class that ``cuda.core`` wants."""

    lender: Lender
    buffer: Any
    device_id: int = -1
    tells_stream: bool = False
    is_device_accessible = True
    is_host_accessible = False
    is_managed = False

    def allocate(self, size: int, stream: object | None = None) -> Any:
        """Return a buffer of ``size`` bytes for work on a stream."""
        if stream is None:
            raise MisuseError(
                "memory is allocated for work on a stream: pass stream=, which may be "
                "the device's default_stream"
            )
        address = self.lender.lend(size, raw_of(stream))
        told = {"stream": stream} if self.tells_stream else {}
        try:
            return self.buffer.from_handle(address, size, self, **told)
        except BaseException:
            self.lender.take_back(address)
            raise

    def deallocate(self, ptr: object, size: int, stream: object | None = None) -> None:
        """Take a buffer back; work on ``stream`` may still be using it."""
        del size
        self.lender.take_back(
            int(ptr),  # type: ignore[call-overload]  # a number, or CUDA's own word
            None if stream is None else raw_of(stream),
        )
