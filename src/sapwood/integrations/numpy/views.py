"""NumPy's functions that only look at memory in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sapwood.integrations.numpy.copies import assign
from sapwood.integrations.numpy.faced import A, Faced
from sapwood.integrations.numpy.launch import empty
from sapwood.integrations.numpy.layout import layout_of

__all__ = ["VIEWS", "imaginary", "viewed"]

VIEWS: Final[tuple[Callable[..., Any], ...]] = (
    np.array_split,
    np.atleast_1d,
    np.atleast_2d,
    np.atleast_3d,
    np.broadcast_arrays,
    np.broadcast_to,
    np.diagonal,
    np.dsplit,
    np.expand_dims,
    np.flip,
    np.fliplr,
    np.flipud,
    np.hsplit,
    np.matrix_transpose,
    np.moveaxis,
    np.real,
    np.rollaxis,
    np.rot90,
    np.split,
    np.squeeze,
    np.swapaxes,
    np.transpose,
    np.unstack,
    np.vsplit,
)
"""Functions that make views of their first argument without reading elements."""


def viewed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` for device arrays: NumPy's own, on the faces."""

    def view(*arrays: Any, **options: Any) -> Any:
        first = next(array for array in arrays if isinstance(array, Faced))
        if function is np.flip and first.ndim == 0:
            return first.seen(first.face.view())
        faces = [a.face if isinstance(a, Faced) else a for a in arrays]
        found = function(*faces, **options)
        if isinstance(found, np.ndarray):
            return first.seen(found)
        if function is not np.broadcast_arrays and not _several(arrays):
            return type(found)(first.seen(face) for face in found)
        pairs = zip(arrays, found, strict=True)
        return type(found)(array.seen(face) for array, face in pairs)

    return view


def _several(arrays: tuple[Any, ...]) -> bool:
    return sum(isinstance(array, Faced) for array in arrays) > 1


def imaginary(x: A) -> A:
    """Return the imaginary part: a view of complex arrays, zeros of others."""
    if x.dtype.kind == "c":
        return x.seen(x.face.imag)
    zeros = empty(type(x), x.device, layout_of(np.empty_like(x.face)))
    assign(zeros, 0)
    return zeros
