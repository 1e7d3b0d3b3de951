"""New device arrays: filled by kernels, or made on the host and brought over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sapwood.integrations.numpy import layout as layouts
from sapwood.integrations.numpy.copies import assign, converted, reshaped, upload
from sapwood.integrations.numpy.faced import A, Faced
from sapwood.integrations.numpy.launch import empty, made, mutate
from sapwood.memory.device import Device
from sapwood.tree.record.host_data import host_data, is_constant


def blank(like: A, template: layouts.Array) -> A:
    """Return an uninitialised array with the layout of a host array."""
    return empty(type(like), like.device, layouts.layout_of(template))


def from_host(kind: type[A], device: Device, host: Any, of: Any = None) -> A:
    """Return a device array with the values, dtype and memory order of ``host``.

    It was made ``of`` something else, if that is given. In a session this is a copy of
    a constant, or refused: see `is_constant`.
    """
    if not is_constant(host if of is None else of):
        host_data("rt.array or numpy.asarray(..., like=x)")
        return upload(kind, device, host)
    data = np.array(host, order="K")
    new = empty(kind, device, layouts.layout_of(data))
    mutate("copy", new, ((data,), (("casting", "unsafe"),)))
    return new


def array(
    like: A,
    value: Any,
    dtype: Any = None,
    *,
    copy: bool | None = True,
    order: Any = "K",
    ndmin: int = 0,
    **_: Any,
) -> A:
    """Return ``numpy.array(value, ..., like=like)``: from host data, or a copy."""
    if not isinstance(value, Faced):
        host = np.array(value, dtype, order=order or "K", ndmin=ndmin)
        return from_host(type(like), like.device, host, value)
    found: A = like.over(value.storage, value.device, value.face, value.layout)
    if copy or (dtype is not None and np.dtype(dtype) != value.dtype):
        found = converted(found, dtype, order or "K")
    elif ndmin <= value.ndim:
        return value  # type: ignore[return-value]
    lead = max(ndmin - found.ndim, 0)
    return reshaped(found, (1,) * lead + found.shape) if lead else found


_NOTHING: Final[Any] = object()
"""The value of arrays that are left as their memory is."""


def _created(value: Any) -> Callable[..., Any]:
    def create(like: A, shape: Any, dtype: Any = None, order: Any = "C", **_: Any) -> A:
        new = blank(like, np.empty(shape, dtype, order))
        if value is not _NOTHING:
            assign(new, value)
        return new

    return create


def _full(
    like: A, shape: Any, fill_value: Any, dtype: Any = None, order: Any = "C", **_: Any
) -> A:
    if dtype is None:
        dtype = getattr(fill_value, "dtype", None) or np.asarray(fill_value).dtype
    new: A = _created(fill_value)(like, shape, dtype, order)
    return new


def _computed(name: str) -> Callable[..., Any]:
    def create(like: A, *args: Any, **options: Any) -> A:
        named = tuple((key, v) for key, v in options.items() if v is not None)
        return made(like, f"make:{name}", (args, named))[0]

    return create


def _same(
    like: A, value: Any, dtype: Any = None, order: Any = "K", **options: Any
) -> A:
    options["copy"] = options.get("copy") or None
    return array(like, value, dtype, order=order, **options)


CREATORS: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    np.arange: _computed("arange"),
    np.array: array,
    np.asanyarray: _same,
    np.asarray: _same,
    np.empty: _created(_NOTHING),
    np.eye: _computed("eye"),
    np.full: _full,
    np.identity: _computed("identity"),
    np.ones: _created(1),
    np.tri: _computed("tri"),
    np.zeros: _created(0),
}
"""Functions with ``like=``: they get the array that was given for it first."""


def _filled_like(value: Any) -> Callable[..., Any]:
    """Return ``numpy.zeros_like`` or one of its kind."""

    def create(
        prototype: A,
        dtype: Any = None,
        order: Any = "K",
        subok: bool = True,
        shape: Any = None,
        **_: Any,
    ) -> A:
        made_up = np.empty_like(prototype.face, dtype, order, subok, shape)
        new = blank(prototype, made_up)
        if value is not _NOTHING:
            assign(new, value)
        return new

    return create


def _full_like(a: A, fill_value: Any, *args: Any, **options: Any) -> A:
    new: A = _filled_like(fill_value)(a, *args, **options)
    return new


LIKES: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    np.empty_like: _filled_like(_NOTHING),
    np.full_like: _full_like,
    np.ones_like: _filled_like(1),
    np.zeros_like: _filled_like(0),
}
"""Functions that make an array of another's shape and memory order."""
