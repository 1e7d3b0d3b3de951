"""New arrays and copies: filled by kernels, brought over from the host, converted.

Assignment is one of them, and so are shapes that no view can have. Indexing makes views
where NumPy does, and copies by kernels.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided

from sapwood.integrations.numpy import layout as layouts
from sapwood.integrations.numpy.faced import A, Faced
from sapwood.integrations.numpy.launch import empty, made, mutate, needless
from sapwood.integrations.strided import bits_of, fill
from sapwood.memory.device import Device
from sapwood.tree.record.host_data import READ_OUTSIDE, host_data, is_constant
from sapwood.tree.record.reading import TELL, Reading
from sapwood.tree.watch import session
from sapwood.units import Size


def constant(value: Any, name: str) -> Any:
    """Return an operand as kernels take it: an array, a number or a 0-d constant.

    Raises `TypeError`, naming the function ``name``, for host arrays and for dtypes
    that device arrays cannot have.
    """
    is_host = isinstance(value, (np.ndarray, np.generic))
    if is_host and value.ndim == 0:
        layouts.check_dtype(value.dtype)
        return value
    if isinstance(value, (Faced, bool, int, float, complex)):
        return value
    named = f"host array of shape {value.shape}" if is_host else type(value).__name__
    hint = "; bring it to the device with rt.array(...) first" if is_host else ""
    raise TypeError(f"numpy.{name} of a sapwood array does not take a {named}{hint}")


def upload(kind: type[A], device: Device, host: Any) -> A:
    """Return a device array with the values, dtype and memory order of ``host``.

    Raises `TypeError` for a dtype that device arrays cannot have.
    """
    data = np.array(host, order="K")
    array = empty(kind, device, layouts.layout_of(data))
    if data.size:
        flat = data.ravel(order="K").view(np.uint8)
        stream = device.stream()
        array.storage.order_write(stream)
        device.driver.upload(array.storage.address, flat.data, stream.handle)
    return array


def _read(array: Faced) -> Any:
    return bits_of(_host(array))


def _filled(
    dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...], bits: Any
) -> layouts.Array:
    """Return an array on the host that has these bits."""
    like = as_strided(np.empty(1, dtype), shape, strides)
    host = np.empty_like(like, order="K")
    fill(host, bits)
    return host


def download(array: Faced, what: str, remedy: str = READ_OUTSIDE) -> layouts.Array:
    """Return the values on the host, in an array of the same memory order.

    Waits for them. ``what`` is how the user asked, for the session to refuse: a text
    always, for a replay would show it to nobody.
    """
    watching = session.current()
    if watching is None:
        return _host(array)
    if remedy is TELL or not watching.may_read(array.nbytes):
        watching.refuse(f"{what} needs a value on the host", remedy)
        return _host(array)
    shown = partial(_filled, array.dtype, array.shape, array.strides)
    return shown(watching.live(Reading(what, _read, shown), (array,), {}))


def _host(array: Faced) -> layouts.Array:
    array.storage.check()
    low, high = array.span
    if low == high:
        return np.empty(array.shape, array.dtype)
    stream = array.device.stream()
    array.storage.order_read(stream)
    driver = array.device.driver
    data = driver.download(low, Size(high - low), stream.handle)
    seen: layouts.Array = np.ndarray(
        array.shape, array.dtype, data, array.address - low, array.strides
    )
    return seen.copy(order="K")


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
        said = "Casting complex values to real discards the imaginary part"
        warnings.warn(said, np.exceptions.ComplexWarning, stacklevel=4)
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


_NOTHING: Final[Any] = object()
"""The value of arrays that are left as their memory is."""


def filled(like: A, template: layouts.Array, value: Any) -> A:
    """Return an array with the layout of a host array, every element ``value``."""
    new = empty(type(like), like.device, layouts.layout_of(template))
    if value is not _NOTHING:
        assign(new, value)
    return new


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


def _array(
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
    found: A = value.seen(value.face)  # type: ignore[assignment]
    if copy or (dtype is not None and np.dtype(dtype) != value.dtype):
        found = converted(found, dtype, order or "K")
    elif ndmin <= value.ndim:
        return value  # type: ignore[return-value]
    lead = max(ndmin - found.ndim, 0)
    return reshaped(found, (1,) * lead + found.shape) if lead else found


def _created(value: Any) -> Callable[..., Any]:
    def create(like: A, shape: Any, dtype: Any = None, order: Any = "C", **_: Any) -> A:
        return filled(like, np.empty(shape, dtype, order), value)

    return create


def _full(
    like: A, shape: Any, fill_value: Any, dtype: Any = None, order: Any = "C", **_: Any
) -> A:
    if dtype is None:
        dtype = getattr(fill_value, "dtype", None) or np.asarray(fill_value).dtype
    return filled(like, np.empty(shape, dtype, order), fill_value)


def _computed(name: str) -> Callable[..., Any]:
    def create(like: A, *args: Any, **options: Any) -> A:
        named = tuple((key, v) for key, v in options.items() if v is not None)
        return made(like, f"make:{name}", (args, named))[0]

    return create


def _same(
    like: A, value: Any, dtype: Any = None, order: Any = "K", **options: Any
) -> A:
    options["copy"] = options.get("copy") or None
    return _array(like, value, dtype, order=order, **options)


CREATORS: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    **{f: _computed(f.__name__) for f in (np.arange, np.eye, np.identity, np.tri)},
    np.array: _array,
    np.asanyarray: _same,
    np.asarray: _same,
    np.empty: _created(_NOTHING),
    np.full: _full,
    np.ones: _created(1),
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
        template = np.empty_like(prototype.face, dtype, order, subok, shape)
        return filled(prototype, template, value)

    return create


def _full_like(a: Faced, fill_value: Any, *args: Any, **options: Any) -> Any:
    return _filled_like(fill_value)(a, *args, **options)


LIKES: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    np.empty_like: _filled_like(_NOTHING),
    np.full_like: _full_like,
    np.ones_like: _filled_like(1),
    np.zeros_like: _filled_like(0),
}
"""Functions that make an array of another's shape and memory order."""


def index_items(index: Any) -> tuple[Any, ...]:
    """Return an index as a tuple of what kernels take.

    Integers, slices, None, Ellipsis and device arrays of integers or bools stay;
    lists and host arrays become constants. Raises `IndexError` for anything else.
    """
    items = index if isinstance(index, tuple) else (index,)
    return tuple(_item(item) for item in items)


def _item(item: Any) -> Any:
    if item is None or item is Ellipsis:
        return item
    if isinstance(item, slice):
        return slice(*map(_bound, (item.start, item.stop, item.step)))
    if isinstance(item, Faced):
        if item.dtype.kind not in "biu":
            raise IndexError(
                f"arrays used as indices must be of integer or bool dtype, not "
                f"{item.dtype}; convert with astype"
            )
        return item
    if isinstance(item, (bool, np.bool_)):
        return np.asarray(item)
    if isinstance(item, (list, tuple, np.ndarray)) and np.ndim(item):
        if isinstance(item, np.ndarray) and not is_constant(item):
            host_data("a host array as an index")
        array = np.asarray(item)
        array = array.astype(np.intp) if array.size == 0 else array
        if array.dtype.kind in "biu":
            return array
    elif hasattr(item, "__index__"):
        return operator.index(item)
    raise IndexError(
        f"{item!r} is not an index of sapwood arrays; use integers, slices, None, "
        "... or arrays of integers or bools"
    )


def _bound(value: Any) -> int | None:
    return None if value is None else operator.index(value)


def _is_basic(items: tuple[Any, ...]) -> bool:
    return not any(isinstance(item, (Faced, np.ndarray)) for item in items)


def _view(x: A, items: tuple[Any, ...]) -> A:
    # With an Ellipsis NumPy makes a view even of a single element, unread.
    if Ellipsis not in items:
        items = (*items, Ellipsis)
    return x.seen(x.face[items])


def element(x: A, index: Any) -> A:
    """Return ``x[index]``; a mask on the device is read on the host, for its count."""
    items = index_items(index)
    if _is_basic(items):
        return _view(x, items)
    known = tuple(
        download(item, "x[mask]")
        if isinstance(item, Faced) and item.dtype == np.bool_
        else item
        for item in items
    )
    return made(x, "gather", ((x, known), ()))[0]


def write_element(x: A, index: Any, value: Any) -> None:
    """Do ``x[index] = value``; a mask stays on the device."""
    items = index_items(index)
    if _is_basic(items):
        assign(_view(x, items), value)
    else:
        mutate("scatter", x, ((items, source(x, value, "x[index] = value")), ()))
