"""Host data that becomes part of a recording: the parameters of kernels that write it.

CuPy copies from pinned memory, and remembers by an event when it may use that again:
no capture may hold either. A kernel's parameters are the graph's own.
"""

from __future__ import annotations

from typing import Any, Final

import cupy
import numpy as np

_BYTES: Final = 3968
"""What one kernel brings: parameters are 4 KiB at most on all GPUs that there are."""

_PART: Final = np.dtype([("bytes", np.uint8, (_BYTES,))])
_SOURCE: Final = r"""
struct Part { unsigned char bytes[3968]; };
extern "C" __global__ void bring(unsigned char* to, const Part part, unsigned count) {
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) to[i] = part.bytes[i];
}
"""
_THREADS: Final = 256
_bring: Final = cupy.RawKernel(_SOURCE, "bring")


def load_kernels() -> None:
    """Compile what brings constants, which cannot be done in a capture."""
    _bring.compile()


def brought(host: Any) -> Any:
    """Return a new device array with the values, dtype and memory order of ``host``.

    Raises `ValueError` for a dtype that CuPy does not have.
    """
    by_columns = host.flags.fnc
    array = cupy.empty(host.shape, host.dtype, order="F" if by_columns else "C")
    flat = np.ascontiguousarray(host.T if by_columns else host).reshape(-1)
    flat = flat.view(np.uint8)
    to = cupy.ndarray((flat.size,), np.uint8, array.data)
    for start in range(0, flat.size, _BYTES):
        some = flat[start : start + _BYTES]
        part = np.zeros(1, _PART)
        part["bytes"][0, : some.size] = some
        _bring((1,), (_THREADS,), (to[start:], part, np.uint32(some.size)))
    return array
