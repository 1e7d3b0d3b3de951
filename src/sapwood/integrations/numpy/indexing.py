"""Indexing: views where NumPy makes views, kernels where it copies."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from sapwood.integrations.numpy.copies import assign, download, source
from sapwood.integrations.numpy.faced import A, Faced
from sapwood.integrations.numpy.launch import made, mutate
from sapwood.tree.record.host_data import host_data, is_constant


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
    if isinstance(item, (list, np.ndarray)) and np.ndim(item):
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
