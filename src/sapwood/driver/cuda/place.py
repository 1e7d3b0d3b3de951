"""One GPU and its primary context, which the frameworks of the process share."""

from __future__ import annotations

from typing import Any

from sapwood.driver.cuda.bindings import Answer, Library
from sapwood.errors import NoDevice


class Place:
    """A GPU by its number; ``with place.current:`` its context is current.

    Raises `NoDevice` where it is not, or cannot be used.
    """

    def __init__(self, library: Library, ordinal: int) -> None:
        cu, of = library.cu, library.cu.CUdevice_attribute
        virtual = of.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        self._library = library
        try:
            self.device = library(cu.cuDeviceGet, ordinal)
            name: bytes = library(cu.cuDeviceGetName, 256, self.device)
            self.name = name.partition(b"\0")[0].decode()
            if not library(cu.cuDeviceGetAttribute, virtual, self.device):
                why = (
                    f"{self.name} has no virtual memory management here: use another "
                    "GPU, or a driver mode that has it"
                )
                raise NoDevice("open", 801, "NOT_SUPPORTED", why)
            self.context = library(cu.cuDevicePrimaryCtxRetain, self.device)
        except Answer as answer:
            why = f"GPU {ordinal} cannot be used: {answer.explanation}"
            raise NoDevice("open", answer.code, answer.name, why) from answer
        self.current = _Current(library, self.context)

    def here(self) -> _Here:
        """Return what to enter for calls that are nobody's capture's business.

        The context is current, and a capture of the thread forbids it nothing: what
        may be done to a capture is decided before CUDA is asked.
        """
        return _Here(self._library, self.current)

    def leave(self) -> None:
        """Let go of the context."""
        self._library(self._library.cu.cuDevicePrimaryCtxRelease, self.device)


# Most calls enter one of these: so they are no generators, and call CUDA bare.


class _Current:
    """``with`` it, the context is current."""

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
    """``with`` it, the context is current and the thread's capture mode relaxed."""

    __slots__ = ("_before", "_current", "_library")

    def __init__(self, library: Library, current: _Current) -> None:
        self._library, self._current = library, current

    def __enter__(self) -> None:
        self._current.__enter__()
        try:
            modes = self._library.cu.CUstreamCaptureMode
            self._before = self._exchange(modes.CU_STREAM_CAPTURE_MODE_RELAXED)
        except Answer:
            self._current.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._exchange(self._before)
        finally:
            self._current.__exit__()

    def _exchange(self, mode: Any) -> Any:
        exchange = self._library.cu.cuThreadExchangeStreamCaptureMode
        code, before = exchange(mode)
        if code:
            raise self._library.answer(exchange, code)
        return before
