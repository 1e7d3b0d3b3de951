"""CUDA's driver library: found, judged, and called with every answer checked.

The one file that imports ``cuda.bindings``, and only when a device is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sapwood.driver.results import Refusal, Result, no_device
from sapwood.errors import DriverError, NoDevice

_DRIVER: Final = Path("/proc/driver/nvidia/version")
_OLDEST: Final = 13000  # CUDA 13.0, as the driver writes it
_OLDEST_BINDINGS: Final = 13
_BINDINGS: Final = "cuda-bindings>=13.3,<14"
_NOT_SUPPORTED: Final = 801

_REMEDIES: Final = {
    "CAPTURED_EVENT": "record the event outside the capture before asking for it",
    "ECC_UNCORRECTABLE": "the GPU's memory is damaged: use another one",
    "ILLEGAL_ADDRESS": "map memory, with access, for as long as work uses it; restart "
    "this process, which cannot use the device any more",
    "ILLEGAL_STATE": "begin a capture on a stream that has none, and end it there",
    "INVALID_IMAGE": "load a cubin, fatbin or PTX text made for this GPU",
    "LAUNCH_FAILED": "the kernel broke off, and this process cannot use the device any "
    "more: mend the kernel and restart",
    "LAUNCH_OUT_OF_RESOURCES": "launch smaller blocks, or with less shared memory",
    "NOT_PERMITTED": "make no device call inside a host function",
    "NO_BINARY_FOR_GPU": "build the image for this GPU",
    "OUT_OF_MEMORY": "give memory back first",
    "STREAM_CAPTURE_IMPLICIT": "use the default stream before or after the capture, or "
    "capture on a non-blocking stream",
    "STREAM_CAPTURE_INVALIDATED": "end the capture, and capture anew",
    "STREAM_CAPTURE_ISOLATION": "wait for the event before the capture begins",
    "STREAM_CAPTURE_MERGE": "capture one after the other",
    "STREAM_CAPTURE_UNJOINED": "record an event on each forked stream and wait for it "
    "before the capture ends",
    "STREAM_CAPTURE_UNSUPPORTED": "do it before or after the capture",
}
_REMEDY: Final = "check what was passed against CUDA's description of the call"


class Answer(Refusal):
    """An error that CUDA answered, by its own number and name."""

    def __init__(self, code: int, name: str, explanation: str) -> None:
        known = code in Result.__members__.values()
        super().__init__(Result(code) if known else Result.UNKNOWN, explanation)
        self.code, self.name = code, name

    def error(self, call: str) -> DriverError:
        """Return what the caller of ``call`` is told."""
        return DriverError(call, self.code, self.name, self.explanation)


def unsupported(explanation: str) -> Answer:
    """Return the error for what CUDA can do and this library cannot say."""
    return Answer(_NOT_SUPPORTED, "NOT_SUPPORTED", explanation)


class Library:
    """The driver library: ``library(library.cu.cuX, ...)`` returns what cuX gives.

    That is None, a value, or a tuple. Raises `Answer` where CUDA reports an error.
    """

    def __init__(self, cu: Any) -> None:
        self.cu = cu

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        code, *values = function(*args)
        if code:
            raise self.answer(function, code)
        return values[0] if len(values) == 1 else tuple(values) or None

    def answer(self, function: Callable[..., Any], code: Any) -> Answer:
        """Return the error that a call answered, explained."""
        name = code.name.removeprefix("CUDA_ERROR_")
        unknown, text = self.cu.cuGetErrorString(code)
        says = "no text" if unknown else text.decode()
        remedy = _REMEDIES.get(name, _REMEDY)
        return Answer(int(code), name, f"{function.__name__} says: {says}; {remedy}")


def open_library() -> Library:
    """Return the driver library, initialised.

    Raises `NoDevice` with the reason where there is none, or none that is new enough.
    """
    library = Library(_bindings())
    cu = library.cu
    try:
        version = library(cu.cuDriverGetVersion)
        if version < _OLDEST:
            raise no_device(
                "cuDriverGetVersion",
                f"the installed driver is for CUDA {version // 1000}."
                f"{version % 1000 // 10}: install one for CUDA 13.0 or newer (580 on)",
            )
        library(cu.cuInit, 0)
    except RuntimeError as error:  # what the bindings raise where they find nothing
        raise no_device(
            "cuInit",
            f"{str(error).rstrip('.')}: install NVIDIA's driver where there is a GPU",
        ) from error
    except Answer as answer:
        raise NoDevice(
            "cuInit", answer.code, answer.name, answer.explanation
        ) from answer
    return library


def is_driver_here() -> bool:
    """Return whether NVIDIA's driver is loaded; asks neither it nor its bindings."""
    return _DRIVER.exists()


def _bindings() -> Any:
    try:
        from cuda import bindings
        from cuda.bindings import driver
    except ImportError as error:
        install = f"pip install '{_BINDINGS}'"
        why = f"no NVIDIA driver here; where there is a GPU, {install}"
        if is_driver_here():
            why = f"NVIDIA's cuda.bindings cannot be imported ({error}): {install}"
        raise no_device("import cuda.bindings", why) from error
    version: str = bindings.__version__
    if int(version.split(".", maxsplit=1)[0]) < _OLDEST_BINDINGS:
        raise no_device(
            "import cuda.bindings",
            f"cuda.bindings {version} are too old: pip install '{_BINDINGS}'",
        )
    return driver


def address_of(library: Library, name: str) -> int:
    """Return where a function of CUDA's driver lies, as of CUDA 13.0."""
    cu = library.cu
    flags = cu.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_LEGACY_STREAM
    found, _ = library(cu.cuGetProcAddress, name.encode(), _OLDEST, int(flags))
    if not found:
        raise unsupported(f"the driver has no {name}: install a newer one")
    return int(found)
