"""One GPU and its primary context, which the frameworks of the process share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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

    @contextmanager
    def here(self) -> Iterator[None]:
        """Make the context current, and allow what a capture would forbid its thread.

        What is created or ended inside takes no part in any capture.
        """
        library, cu = self._library, self._library.cu
        relaxed = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        library(cu.cuCtxPushCurrent, self.context)
        try:
            before = library(cu.cuThreadExchangeStreamCaptureMode, relaxed)
            try:
                yield
            finally:
                library(cu.cuThreadExchangeStreamCaptureMode, before)
        finally:
            library(cu.cuCtxPopCurrent)

    def leave(self) -> None:
        """Let go of the context."""
        self._library(self._library.cu.cuDevicePrimaryCtxRelease, self.device)
