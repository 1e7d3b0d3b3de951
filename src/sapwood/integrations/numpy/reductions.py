"""Sums and other reductions, composed as NumPy composes them, bit for bit."""

from __future__ import annotations

from inspect import signature
from typing import Any, Final

import numpy as np

from sapwood.integrations.numpy.arithmetic import reduced
from sapwood.integrations.numpy.copies import converted

__all__ = ["count_nonzero", "mean", "ptp", "reduction", "std", "var"]

UNSET: Final = signature(np.sum).parameters["keepdims"].default
"""What NumPy's signatures have where an option is left away."""


def _options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: v for name, v in options.items() if v is not UNSET and v is not None}


def reduction(ufunc: np.ufunc) -> Any:
    """Return NumPy's function for ``ufunc.reduce``, such as ``numpy.sum``."""

    def reduce(
        a: Any, axis: Any = None, dtype: Any = None, out: Any = None, **options: Any
    ) -> Any:
        return reduced(a, ufunc, axis, dtype=dtype, out=out, **_options(options))

    def reduce_plain(a: Any, axis: Any = None, out: Any = None, **options: Any) -> Any:
        return reduced(a, ufunc, axis, out=out, **_options(options))

    return reduce if ufunc in (np.add, np.multiply) else reduce_plain


def _axes(a: Any, axis: Any) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(a.ndim))
    given = axis if isinstance(axis, tuple) else (axis,)
    return tuple(np.lib.array_utils.normalize_axis_index(n, a.ndim) for n in given)


def _count(a: Any, axis: Any) -> np.intp:
    count = 1
    for place in _axes(a, axis):
        count *= a.shape[place]
    return np.intp(count)


def _divided(total: Any, count: Any) -> Any:
    return np.true_divide(total, count, out=total, casting="unsafe")


def _wide(a: Any, dtype: Any) -> Any:
    return np.dtype(np.float64) if dtype is None and a.dtype.kind in "biu" else dtype


def mean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, **options: Any
) -> Any:
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
    return converted(np.true_divide(total, _count(a, axis)), np.float16)


def _no_where(name: str, options: dict[str, Any]) -> None:
    if "where" in options:
        raise TypeError(
            f"sapwood arrays do not support numpy.{name}(where=...); use numpy.where "
            "and numpy.sum"
        )


def var(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: float = 0,
    **options: Any,
) -> Any:
    """Return ``numpy.var(a, axis, ...)``; ``where`` and ``mean`` are not supported."""
    options = _options(options)
    ddof = options.pop("correction", ddof)
    _no_where("var", options)
    if "mean" in options:
        raise TypeError("sapwood arrays do not support numpy.var(mean=...); leave it")
    wide = _wide(a, dtype)
    average = reduced(a, np.add, axis, dtype=wide, keepdims=True)
    count = _count(a, axis)
    off: Any = np.subtract(a, _divided(average, count))
    squares = reduced(_squared(off), np.add, axis, dtype=wide, out=out, **options)
    return _divided(squares, np.maximum(count - ddof, 0))


def _squared(off: Any) -> Any:
    """``|off|**2``, written over ``off``."""
    if off.dtype.kind != "c":
        return np.multiply(off, off, out=off)
    real, imag = off.real, off.imag
    for part in (real, imag):
        np.multiply(part, part, out=part)
    return np.add(real, imag, out=real)


def std(a: Any, *args: Any, **options: Any) -> Any:
    """Return ``numpy.std(a, axis, ...)``, with the options of `var`."""
    spread = var(a, *args, **options)
    return np.sqrt(spread, out=spread)


def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = UNSET) -> Any:
    """Return the largest minus the smallest element along ``axis``."""
    options = _options({"keepdims": keepdims})
    high = reduced(a, np.maximum, axis, out=out, **options)
    low = reduced(a, np.minimum, axis, **options)
    return np.subtract(high, low, out=high)


def count_nonzero(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """Return how many elements are not zero, as a device array."""
    mask = np.not_equal(a, 0)
    return reduced(mask, np.add, axis, dtype=np.dtype(np.intp), keepdims=keepdims)
