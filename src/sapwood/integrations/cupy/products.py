"""Matrix products by cuBLAS, in a way that can be captured.

CuPy refuses to call cuBLAS while a stream captures, as cuBLAS would then allocate. Here
its workspace is an allocation like any other, so a recording counts it, and shares it
with whatever else is temporary.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import cupy
import numpy as np

from sapwood.errors import DriverError

__all__ = ["product"]

_WORKSPACE: Final = 32 << 20
_TRANSPOSED, _PLAIN = 1, 0
_DEFAULT_ALGORITHM: Final = -1
_KINDS: Final[Mapping[str, tuple[int, int, Any]]] = {
    "e": (2, 68, ctypes.c_float * 1),
    "f": (0, 68, ctypes.c_float * 1),
    "d": (1, 70, ctypes.c_double * 1),
    "F": (4, 68, ctypes.c_float * 2),
    "D": (5, 70, ctypes.c_double * 2),
}
"""By dtype: cudaDataType, cublasComputeType, and the type of alpha and beta."""


class _Blas:
    """cuBLAS on one GPU; its handle's stream and workspace are set for every call."""

    def __init__(self) -> None:
        # CuPy has loaded it: this finds it by its name.
        version = cupy.cuda.runtime.runtimeGetVersion() // 1000
        self.library = ctypes.CDLL(f"libcublas.so.{version}")
        self.handle = ctypes.c_void_p()
        self.lock = threading.Lock()
        self.call("cublasCreate_v2", ctypes.byref(self.handle))

    def call(self, name: str, *args: Any) -> None:
        """Call a function of cuBLAS; raises `DriverError`."""
        status = getattr(self.library, name)(*args)
        if status:
            raise DriverError(
                name, status, f"CUBLAS_STATUS_{status}", "see cuBLAS's list of statuses"
            )

    def gemm(self, dtype: Any, a: Any, b: Any, out: Any) -> None:
        """Write ``a @ b`` to ``out``: row-major, of three dimensions, last ones dense.

        To cuBLAS, which is column-major, that is the product of the transposes.
        """
        _, compute, scalar = _KINDS[dtype.char]
        n, m, k = out.shape[2], out.shape[1], a.shape[2]
        one, zero = scalar(1), scalar(0)
        operands = [_operand(b, dtype), _operand(a, dtype)]
        transposes = [ctypes.c_int(operand[0]) for operand in operands]
        room = cupy.cuda.alloc(_WORKSPACE)
        where = ctypes.c_void_p(room.ptr), ctypes.c_size_t(_WORKSPACE)
        stream = ctypes.c_void_p(cupy.cuda.get_current_stream().ptr)
        described = [value for operand in operands for value in operand[1:]]
        with self.lock:
            # The stream first: setting it takes the workspace away.
            self.call("cublasSetStream_v2", self.handle, stream)
            self.call("cublasSetWorkspace_v2", self.handle, *where)
            self.call(
                "cublasGemmStridedBatchedEx",
                self.handle,
                *transposes,
                *map(ctypes.c_int, (n, m, k)),
                ctypes.byref(one),
                *described[:4],
                *described[4:],
                ctypes.byref(zero),
                *_operand(out, dtype)[1:],
                ctypes.c_int(out.shape[0]),
                ctypes.c_int(compute),
                ctypes.c_int(_DEFAULT_ALGORITHM),
            )


def _operand(array: Any, dtype: Any) -> tuple[int, Any, Any, Any, Any]:
    """Return whether it is transposed, pointer, type, leading dimension, stride."""
    batch, row, column = (step // dtype.itemsize for step in array.strides)
    transposed = column != 1 and array.shape[2] > 1
    leading = column if transposed else row
    least = array.shape[1] if transposed else array.shape[2]
    return (
        _TRANSPOSED if transposed else _PLAIN,
        ctypes.c_void_p(array.data.ptr),
        ctypes.c_int(_KINDS[dtype.char][0]),
        ctypes.c_int(max(leading, least, 1)),
        ctypes.c_longlong(batch if array.shape[0] > 1 else 0),
    )


@cache
def _blas(ordinal: int) -> _Blas:
    with cupy.cuda.Device(ordinal):
        return _Blas()


def product(a: Any, b: Any, otherwise: Callable[[Any], Any]) -> Any:
    """Return ``a @ b``; by ``otherwise(b)`` where cuBLAS has no part in it.

    Raises `ValueError` for shapes that do not fit, as NumPy does.
    """
    if not isinstance(a, cupy.ndarray) or not isinstance(b, cupy.ndarray):
        return otherwise(b)
    dtype = np.result_type(a.dtype, b.dtype)
    if dtype.char not in _KINDS or not a.ndim or not b.ndim:
        return _alike(otherwise(b), a, b)
    left, right = _matrix(a, 0), _matrix(b, 1)
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(
            f"matmul: the last dimension of {a.shape} and the one before last of "
            f"{b.shape} differ"
        )
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    inner = left.shape[-2], right.shape[-1]
    out = cupy.empty((*batch, *inner), dtype)
    if not out.size or not left.shape[-1]:
        out.fill(0)
    else:
        count = int(np.prod(batch, dtype=int))
        left, right = (_dense(x, dtype, batch, count) for x in (left, right))
        _blas(out.data.mem.device_id).gemm(
            dtype, left, right, out.reshape(count, *inner)
        )
    shape = (
        *batch,
        *(inner[:1] if a.ndim > 1 else ()),
        *(inner[1:] if b.ndim > 1 else ()),
    )
    return _alike(out.reshape(shape), a, b)


def _alike(out: Any, a: Any, b: Any) -> Any:
    kind = type(a) if type(a) is not cupy.ndarray else type(b)
    return out.view(kind) if isinstance(out, cupy.ndarray) else out


def _matrix(x: Any, axis: int) -> Any:
    x = x.view(cupy.ndarray)
    return x if x.ndim > 1 else cupy.expand_dims(x, axis)


def _dense(x: Any, dtype: Any, batch: tuple[int, ...], count: int) -> Any:
    """Return an operand with one batch dimension, of which one matrix step is 1."""
    x = x.astype(dtype, copy=False)
    if x.ndim == 2:
        x = x[None]
        if count > 1:
            x = cupy.broadcast_to(x, (count, *x.shape[1:]))
    else:
        whole = (*batch, *x.shape[-2:])
        x = cupy.ascontiguousarray(cupy.broadcast_to(x, whole))
        x = x.reshape(count, *x.shape[-2:])
    return x if _is_dense(x) else _copied(x, count)


def _copied(x: Any, count: int) -> Any:
    if count > 1 and x.strides[0] == 0:
        return cupy.broadcast_to(cupy.ascontiguousarray(x[:1]), x.shape)
    return cupy.ascontiguousarray(x)


def _is_dense(x: Any) -> bool:
    size = x.dtype.itemsize
    _, rows, columns = x.shape
    _, row, column = x.strides
    by_rows = (column == size or columns == 1) and (row >= columns * size or rows == 1)
    by_columns = (row == size or rows == 1) and (column >= rows * size or columns == 1)
    aligned = x.data.ptr % size == 0 and row % size == 0 and column % size == 0
    return bool(aligned and (by_rows or by_columns))
