"""Matrix products by cuBLAS as CuPy has them, in captures, where CuPy refuses to.

The routines, their settings and the order of operands are CuPy's (see ``dot``,
``matmul`` and ``tensordot_core`` of its ``_core/_routines_linalg.pyx``), so that bits
are those of an eager call. The workspace is an allocation like any other, so a
recording counts it, and shares it with whatever else is temporary.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import cupy
import numpy as np
from cupy._core import _routines_linalg

from sapwood.errors import DriverError

_HOPPER: Final = 90
_WORKSPACE, _WORKSPACE_BEFORE_HOPPER = 32 << 20, 4 << 20
"""What cuBLAS takes by itself: it chooses by it."""

_TENSOR_OP, _BY_DEFAULT = 99, -1
_AMPERE: Final = 80
_KINDS: Final[Mapping[str, tuple[int, int, Any]]] = {
    "e": (2, 68, ctypes.c_float * 1),
    "f": (0, 68, ctypes.c_float * 1),
    "d": (1, 70, ctypes.c_double * 1),
    "F": (4, 68, ctypes.c_float * 2),
    "D": (5, 70, ctypes.c_double * 2),
}
"""By dtype: cudaDataType, cublasComputeType, and the type of alpha and beta."""

_TF32: Final = 77
_BATCHED: Final = {
    char: f"cublas{letter}gemmBatched"
    for char, letter in {"f": "S", "d": "D", "F": "C", "D": "Z"}.items()
}

_theirs: Final[Any] = _routines_linalg
_to_blas: Final = _theirs._mat_to_cublas_contiguous  # noqa: SLF001 - what decides bits
_addresses: Final = _theirs._mat_ptrs  # noqa: SLF001

Original = Callable[..., Any]


@cache
def _library() -> Any:
    # CuPy has loaded it: this finds it by its name.
    version = cupy.cuda.runtime.runtimeGetVersion() // 1000
    return ctypes.CDLL(f"libcublas.so.{version}")


def load_blas() -> bool:
    """Have CuPy make its handle of cuBLAS for this thread, where any thread used it.

    Return whether it has one now.
    """
    used = "cupy_backends.cuda.libs.cublas" in sys.modules  # CuPy waits for the first
    if used:
        cupy.cuda.device.get_cublas_handle()
    return used


def _call(name: str, *args: Any) -> None:
    status = getattr(_library(), name)(*args)
    if status:
        raise DriverError(
            name, status, f"CUBLAS_STATUS_{status}", "see cuBLAS's list of statuses"
        )


def _run(name: str, sizes: tuple[int, ...], *args: Any) -> None:
    """Call a routine of cuBLAS on CuPy's stream, with a workspace of this call."""
    handle = ctypes.c_void_p(cupy.cuda.device.get_cublas_handle())
    stream = ctypes.c_void_p(cupy.cuda.get_current_stream().ptr)
    is_older = _capability() < _HOPPER
    size = _WORKSPACE_BEFORE_HOPPER if is_older else _WORKSPACE
    room = cupy.cuda.alloc(size)
    # The stream first: setting it takes the workspace away, as CuPy's next call does.
    _call("cublasSetStream_v2", handle, stream)
    where = ctypes.c_void_p(room.ptr), ctypes.c_size_t(size)
    _call("cublasSetWorkspace_v2", handle, *where)
    _call(name, handle, *map(ctypes.c_int, sizes), *args)


@cache
def _capability_of(ordinal: int) -> int:
    return int(cupy.cuda.Device(ordinal).compute_capability)


def _capability() -> int:
    return _capability_of(cupy.cuda.runtime.getDevice())


def _is_blas(a: Any, b: Any) -> bool:
    """Return whether cuBLAS has a part in the product of two arrays."""
    return bool(a.size and b.size) and np.promote_types(a.dtype, b.dtype).char in _KINDS


def dot(original: Original, a: Any, b: Any, out: Any = None) -> Any:
    """Return ``a.dot(b)``; raises what CuPy raises, by its own function."""
    fits = a.ndim and b.ndim and a.shape[-1] == b.shape[max(b.ndim - 2, 0)]
    if not fits or not _is_blas(a, b):
        return original(a, b, out)
    left = a if a.ndim > 1 else a.reshape(1, -1)
    right = b if b.ndim > 1 else b.reshape(-1, 1)
    k = left.shape[-1]
    n, m = left.size // k, right.size // k
    dtype = np.promote_types(a.dtype, b.dtype)
    shape = (*a.shape[:-1], *(b.shape[:-2] + b.shape[-1:] if b.ndim > 1 else ()))
    if m == n == 1 or (out is not None and not _may_hold(out, n * m, dtype)):
        return original(a, b, out)
    left, right = cupy.rollaxis(left, left.ndim - 1, 0), _row_first(right)
    return tensordot(original, left, right, out, n, m, k, shape)


def _row_first(b: Any) -> Any:
    return cupy.rollaxis(b, b.ndim - 2, 0) if b.ndim > 2 else b


def _may_hold(out: Any, size: int, dtype: Any) -> bool:
    return bool(out.dtype == dtype and out.flags.c_contiguous and out.size == size)


def tensordot(
    original: Original,
    a: Any,
    b: Any,
    out: Any,
    n: int,
    m: int,
    k: int,
    shape: tuple[int, ...],
) -> Any:
    """Return the sum over the first axis of both, ``k`` long: of ``n * m`` elements."""
    if m == n == 1 or not _is_blas(a, b):
        return original(a, b, out, n, m, k, shape)
    dtype = np.promote_types(a.dtype, b.dtype)
    left = a.astype(dtype, order="K", copy=False).reshape(k, n)
    right = b.astype(dtype, order="K", copy=False).reshape(k, m)
    # Of what is row-major, cuBLAS sees the transpose: so b comes first.
    left, left_turned, left_step = _to_blas(left, 0)
    right, right_turned, right_step = _to_blas(right, 1)
    shares = out is not None and (
        cupy.may_share_memory(out, left) or cupy.may_share_memory(out, right)
    )
    found = cupy.empty(shape, dtype) if out is None or shares else out
    kind, compute, scalar = _KINDS[dtype.char]
    compute = _compute(dtype, compute)
    of = ctypes.c_int(kind)
    _run(
        "cublasGemmEx",
        (right_turned, left_turned, m, n, k),
        ctypes.byref(scalar(1)),
        *(ctypes.c_void_p(right.data.ptr), of, ctypes.c_int(right_step)),
        *(ctypes.c_void_p(left.data.ptr), of, ctypes.c_int(left_step)),
        ctypes.byref(scalar(0)),
        *(ctypes.c_void_p(found.data.ptr), of, ctypes.c_int(m)),
        ctypes.c_int(compute),
        ctypes.c_int(_algorithm(dtype)),
    )
    if not shares:
        return found
    out[...] = found
    return out


def _compute(dtype: Any, usual: int) -> int:
    chosen = _theirs.get_compute_type(dtype)
    if chosen == _theirs.COMPUTE_TYPE_PEDANTIC:
        return usual + 1
    if chosen == _theirs.COMPUTE_TYPE_TF32 and dtype.char in "fF":
        return _TF32
    return usual


def _algorithm(dtype: Any) -> int:
    capable = _capability() >= (_AMPERE if dtype.char != "e" else 70)
    return _TENSOR_OP if capable else _BY_DEFAULT


def matmul(original: Original, a: Any, b: Any, out: Any = None) -> Any:
    """Return ``a @ b``; raises what CuPy raises, by its own function."""
    if max(a.ndim, b.ndim) > 2:
        return _stacked(original, a, b, out)
    dtype = np.promote_types(a.dtype, b.dtype)
    if out is None or (out.flags.c_contiguous and out.dtype == dtype):
        return dot(original, a, b, out)
    found = cupy.empty(out.shape, dtype)
    dot(original, a, b, found)
    out[...] = found
    return out


def _stacked(original: Original, a: Any, b: Any, out: Any) -> Any:
    """Return the products of two stacks of matrices."""
    if not (a.ndim and b.ndim):
        return original(a, b, out)
    left = a if a.ndim > 1 else a.reshape(1, -1)
    right = b if b.ndim > 1 else b.reshape(-1, 1)
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        return original(a, b, out)
    result = np.promote_types(a.dtype, b.dtype)
    inner = left.shape[-2], right.shape[-1]
    shape = (*batch, *inner[: a.ndim > 1], *inner[1 : 1 + (b.ndim > 1)])
    fits = left.shape[-1] == right.shape[-2] and (out is None or out.shape == shape)
    if not fits or not _is_blas(a, b):
        return original(a, b, out)
    dtype = np.dtype("f") if result.char == "e" else result
    left, right = (cupy.ascontiguousarray(x, dtype) for x in (left, right))
    found, count = cupy.empty((*batch, *inner), dtype), math.prod(batch)
    # CuPy takes the other routine only where a matrix is repeated.
    if all(math.prod(x.shape[:-2]) == count for x in (left, right)):
        _strided(left, right, found)
    else:
        _by_pointers(_repeated(left, batch), _repeated(right, batch), found)
    found = found.reshape(shape)
    if out is None:
        return found if dtype == result else found.astype(result)
    out[...] = found
    return out


def _repeated(x: Any, batch: tuple[int, ...]) -> Any:
    return cupy.broadcast_to(x, batch + x.shape[-2:])


def _strided(left: Any, right: Any, found: Any) -> None:
    kind, compute, scalar = _KINDS[found.dtype.char]
    (m, n), k = found.shape[-2:], left.shape[-1]

    def operand(x: Any) -> tuple[Any, ...]:
        rows, columns = x.shape[-2:]
        step = ctypes.c_longlong(rows * columns)
        at = ctypes.c_void_p(x.data.ptr)
        return at, ctypes.c_int(kind), ctypes.c_int(columns), step

    _run(
        "cublasGemmStridedBatchedEx",
        (0, 0, n, m, k),
        ctypes.byref(scalar(1)),
        *operand(right),
        *operand(left),
        ctypes.byref(scalar(0)),
        *operand(found),
        ctypes.c_int(found.size // (m * n)),
        ctypes.c_int(compute),
        ctypes.c_int(_BY_DEFAULT),
    )


def _by_pointers(left: Any, right: Any, found: Any) -> None:
    """Multiply stacks of which one is repeated: by the address of each matrix."""
    _, _, scalar = _KINDS[found.dtype.char]
    (m, n), k = found.shape[-2:], left.shape[-1]
    tables = [_addresses(x) for x in (right, left, found)]

    def operand(table: Any, columns: int) -> tuple[Any, ...]:
        return ctypes.c_void_p(table.data.ptr), ctypes.c_int(columns)

    _run(
        _BATCHED[found.dtype.char],
        (0, 0, n, m, k),
        ctypes.byref(scalar(1)),
        *operand(tables[0], n),
        *operand(tables[1], k),
        ctypes.byref(scalar(0)),
        *operand(tables[2], n),
        ctypes.c_int(found.size // (m * n)),
    )
