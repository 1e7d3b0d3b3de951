"""Copies on the device: assignment, conversion, and shapes that no view can have."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from sapwood.integrations.numpy import layout as layouts
from sapwood.integrations.numpy.faced import A, Faced
from sapwood.integrations.numpy.host import upload
from sapwood.integrations.numpy.launch import empty, made, mutate, needless
from sapwood.tree.record.host_data import host_data, is_constant

__all__ = ["assign", "converted", "raveled", "reshaped", "source"]


def source(target: A, value: Any, what: str) -> Any:
    """Return what is assigned to ``target`` as a kernel takes it.

    Plain numbers and sequences become constants; host arrays are uploaded, but for
    those that are a session's constants. Raises what NumPy raises for values that do
    not convert.
    """
    if isinstance(value, Faced):
        found: Any = value
    elif isinstance(value, np.ndarray) and value.ndim and not is_constant(value):
        host_data(what)
        found = upload(type(target), target.device, value)
    elif isinstance(value, (np.ndarray, np.generic, list, tuple)):
        found = np.asarray(value)
        layouts.check_dtype(found.dtype)
    else:
        with np.errstate(all="ignore"):
            return np.array(value, target.dtype)
    if found.dtype.kind == "c" and target.dtype.kind != "c":
        warnings.warn(
            "Casting complex values to real discards the imaginary part",
            np.exceptions.ComplexWarning,
            stacklevel=4,
        )
        return found.seen(found.face.real) if isinstance(found, Faced) else found.real
    return found


def assign(target: A, value: Any, what: str = "x[...] = value") -> None:
    """Write ``value`` into ``target``, broadcast and cast as by NumPy's ``[...] =``."""
    args = (source(target, value, what),), (("casting", "unsafe"),)
    if isinstance(value, Faced) and _is_same(target, value):
        needless("copy", target, args)
    else:
        mutate("copy", target, args)


def _is_same(target: Faced, value: Faced) -> bool:
    # ``x[1:] += y`` ends by assigning a view to itself.
    same = target.address == value.address and target.layout == value.layout
    return same and target.storage is value.storage


def converted(x: A, dtype: Any = None, order: Any = "K") -> A:
    """Return a copy with another dtype and memory order (default: the same)."""
    dtype = x.dtype if dtype is None else np.dtype(dtype)
    layouts.check_dtype(dtype)
    blank = np.empty_like(x.face, dtype, order, subok=False)
    copy = empty(type(x), x.device, layouts.layout_of(blank))
    assign(copy, x)
    return copy


def reshaped(x: A, shape: Any, order: Any = "C") -> A:
    """Return ``x`` in another shape: a view where there is one, else a copy."""
    try:
        return x.seen(x.face.reshape(shape, order=order, copy=False))
    except ValueError:
        shape = tuple(shape) if isinstance(shape, list) else shape
        return made(x, "reshape", ((x, shape), (("order", order),)))[0]


def raveled(x: A, order: Any = "C", *, copy: bool = False) -> A:
    """Return ``x`` in one dimension: a view where it is contiguous, else a copy."""
    face = x.face
    if not copy:
        if order == "K":
            steps = [(-abs(step), place) for place, step in enumerate(face.strides)]
            face = face.transpose([place for _, place in sorted(steps)])
        elif order == "F" or (order == "A" and face.flags.fnc):
            face = face.T
        if face.flags.c_contiguous:
            return x.seen(face.reshape(-1, copy=False))
    return made(x, "flatten", ((x,), (("order", order),)))[0]
