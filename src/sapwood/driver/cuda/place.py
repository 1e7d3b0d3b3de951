"""One GPU and its primary context, which the frameworks of the process share."""

from __future__ import annotations

from typing import Any

from sapwood.driver.cuda.bindings import Answer, Library
from sapwood.errors import NoDevice

__all__ = ["Place"]


class Place:
    """A GPU by its number. Raises `NoDevice` where it is not, or cannot be used."""

    def __init__(self, library: Library, ordinal: int) -> None:
        cu = library.cu
        self._library = library
        try:
            self.device = library(cu.cuDeviceGet, ordinal)
            self.name: str = (
                library(cu.cuDeviceGetName, 256, self.device).rstrip(b"\0").decode()
            )
            virtual = library(
                cu.cuDeviceGetAttribute,
                cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                self.device,
            )
            if not virtual:
                raise NoDevice(
                    "cuDeviceGetAttribute",
                    801,
                    "NOT_SUPPORTED",
                    f"{self.name} has no virtual memory management here: use another "
                    "GPU, or a driver mode that has it",
                )
            self.context = library(cu.cuDevicePrimaryCtxRetain, self.device)
        except Answer as answer:
            raise NoDevice(
                "open",
                answer.code,
                answer.name,
                f"GPU {ordinal} cannot be used: {answer.explanation}",
            ) from answer

    def here(self) -> _Here:
        """Return a context in which the calling thread may do anything on this GPU.

        Its CUDA context is current, and a capture of the thread forbids it nothing:
        what may be done to a capture is decided before CUDA is asked.
        """
        return _Here(self._library, self.context)

    def leave(self) -> None:
        """Let go of the context."""
        self._library(self._library.cu.cuDevicePrimaryCtxRelease, self.device)


class _Here:
    """``with`` it; a class, as most calls enter one and generators are slow."""

    __slots__ = ("_before", "_context", "_library")

    def __init__(self, library: Library, context: Any) -> None:
        self._library, self._context = library, context

    def __enter__(self) -> None:
        library, cu = self._library, self._library.cu
        relaxed = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        library(cu.cuCtxPushCurrent, self._context)
        self._before = library(cu.cuThreadExchangeStreamCaptureMode, relaxed)

    def __exit__(self, *_: object) -> None:
        library, cu = self._library, self._library.cu
        library(cu.cuThreadExchangeStreamCaptureMode, self._before)
        library(cu.cuCtxPopCurrent)
