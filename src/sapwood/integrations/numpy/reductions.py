"""Sums and other reductions, composed as NumPy composes them, bit for bit."""

from __future__ import annotations

from inspect import signature
from typing import Any, Final

import numpy as np

from sapwood.integrations.numpy.arithmetic import elementwise, reduced
from sapwood.integrations.numpy.copies import converted
from sapwood.integrations.numpy.faced import A

__all__ = ["count_nonzero", "mean", "ptp", "reduction", "std", "var"]

UNSET: Final = signature(np.sum).parameters["keepdims"].default
"""What NumPy's signatures have where an option is left away."""


def _options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: v for name, v in options.items() if v is not UNSET and v is not None}


def reduction(ufunc: np.ufunc) -> Any:
    """Return NumPy's function for ``ufunc.reduce``, such as ``numpy.sum``."""

    def reduce(
        a: A, axis: Any = None, dtype: Any = None, out: A | None = None, **options: Any
    ) -> A:
        return reduced(a, ufunc, axis, dtype=dtype, out=out, **_options(options))

    def reduce_plain(a: A, axis: Any = None, out: A | None = None, **options: Any) -> A:
        return reduced(a, ufunc, axis, out=out, **_options(options))

    return reduce if ufunc in (np.add, np.multiply) else reduce_plain


def _axes(a: A, axis: Any) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(a.ndim))
    given = axis if isinstance(axis, tuple) else (axis,)
    return tuple(np.lib.array_utils.normalize_axis_index(n, a.ndim) for n in given)


def _count(a: A, axis: Any) -> np.intp:
    count = 1
    for place in _axes(a, axis):
        count *= a.shape[place]
    return np.intp(count)


def _divided(total: A, count: Any) -> A:
    found: A = elementwise(np.true_divide, (total, count), (total,), casting="unsafe")
    return found


def _wide(a: A, dtype: Any) -> Any:
    return np.dtype(np.float64) if dtype is None and a.dtype.kind in "biu" else dtype


def mean(
    a: A, axis: Any = None, dtype: Any = None, out: A | None = None, **options: Any
) -> A:
    """Return ``numpy.mean(a, axis, ...)``; ``where`` is not supported."""
    options = _options(options)
    _no_where("mean", options)
    half = dtype is None and a.dtype == np.float16
    wide = np.dtype(np.float32) if half else _wide(a, dtype)
    total = reduced(a, np.add, axis, dtype=wide, out=out, **options)
    if not half or out is not None:
        return _divided(total, _count(a, axis))
    if total.ndim:
        return converted(_divided(total, _count(a, axis)), np.float16)
    # NumPy divides a scalar in double precision before it rounds to half.
    exact: A = elementwise(np.true_divide, (total, _count(a, axis)))
    return converted(exact, np.float16)


def _no_where(name: str, options: dict[str, Any]) -> None:
    if "where" in options:
        raise TypeError(
            f"sapwood arrays do not support numpy.{name}(where=...); use numpy.where "
            "and numpy.sum"
        )


def var(
    a: A,
    axis: Any = None,
    dtype: Any = None,
    out: A | None = None,
    ddof: float = 0,
    **options: Any,
) -> A:
    """Return ``numpy.var(a, axis, ...)``; ``where`` and ``mean`` are not supported."""
    options = _options(options)
    ddof = options.pop("correction", ddof)
    _no_where("var", options)
    if "mean" in options:
        raise TypeError("sapwood arrays do not support numpy.var(mean=...); leave it")
    wide = _wide(a, dtype)
    average = reduced(a, np.add, axis, dtype=wide, keepdims=True)
    count = _count(a, axis)
    off: A = elementwise(np.subtract, (a, _divided(average, count)))
    squares = reduced(_squared(off), np.add, axis, dtype=wide, out=out, **options)
    return _divided(squares, np.maximum(count - ddof, 0))


def _squared(off: A) -> A:
    """``|off|**2``, written over ``off``."""
    if off.dtype.kind != "c":
        found: A = elementwise(np.multiply, (off, off), (off,))
        return found
    real, imag = off.seen(off.face.real), off.seen(off.face.imag)
    for part in (real, imag):
        elementwise(np.multiply, (part, part), (part,))
    summed: A = elementwise(np.add, (real, imag), (real,))
    return summed


def std(
    a: A, axis: Any = None, dtype: Any = None, out: A | None = None, **rest: Any
) -> A:
    """Return ``numpy.std(a, axis, ...)``, with the options of `var`."""
    spread = var(a, axis, dtype, out, **rest)
    found: A = elementwise(np.sqrt, (spread,), (spread,))
    return found


def ptp(a: A, axis: Any = None, out: A | None = None, keepdims: Any = UNSET) -> A:
    """Return the largest minus the smallest element along ``axis``."""
    options = _options({"keepdims": keepdims})
    high = reduced(a, np.maximum, axis, out=out, **options)
    low = reduced(a, np.minimum, axis, **options)
    found: A = elementwise(np.subtract, (high, low), (high,))
    return found


def count_nonzero(a: A, axis: Any = None, *, keepdims: bool = False) -> A:
    """Return how many elements are not zero, as a device array."""
    mask: A = elementwise(np.not_equal, (a, 0))
    return reduced(mask, np.add, axis, dtype=np.dtype(np.intp), keepdims=keepdims)
