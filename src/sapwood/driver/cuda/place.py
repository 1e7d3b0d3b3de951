"""One GPU and its primary context, which the frameworks of the process share."""

from __future__ import annotations

from typing import Any

from sapwood.driver.cuda.bindings import Answer, Library
from sapwood.errors import NoDevice

__all__ = ["Place"]


class Place:
    """A GPU by its number; ``with place.current:`` its context is current.

    Raises `NoDevice` where it is not, or cannot be used.
    """

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
        self.current = _Current(library, self.context)

    def here(self) -> _Here:
        """Return a context in which the calling thread may do anything on this GPU.

        Its CUDA context is current, and a capture of the thread forbids it nothing:
        what may be done to a capture is decided before CUDA is asked.
        """
        return _Here(self._library, self.current)

    def leave(self) -> None:
        """Let go of the context."""
        self._library(self._library.cu.cuDevicePrimaryCtxRelease, self.device)


class _Current:
    """``with`` it, the context is current. Its calls are made bare: patching is hot."""

    __slots__ = ("_context", "_library", "_pop", "_push")

    def __init__(self, library: Library, context: Any) -> None:
        self._library, self._context = library, context
        self._push, self._pop = library.cu.cuCtxPushCurrent, library.cu.cuCtxPopCurrent

    def __enter__(self) -> None:
        code = self._push(self._context)[0]
        if code:
            raise self._library.answer(self._push, code)

    def __exit__(self, *_: object) -> None:
        code = self._pop()[0]
        if code:
            raise self._library.answer(self._pop, code)


class _Here:
    """``with`` it, the context is current, and the thread's captures forbid nothing."""

    __slots__ = ("_before", "_current", "_library")

    def __init__(self, library: Library, current: _Current) -> None:
        self._library, self._current = library, current

    def __enter__(self) -> None:
        cu = self._library.cu
        relaxed = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._current.__enter__()
        self._before = self._library(cu.cuThreadExchangeStreamCaptureMode, relaxed)

    def __exit__(self, *_: object) -> None:
        cu = self._library.cu
        self._library(cu.cuThreadExchangeStreamCaptureMode, self._before)
        self._current.__exit__()
