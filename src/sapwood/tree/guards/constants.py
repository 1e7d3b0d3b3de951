"""What a value that is not looked into is compared by: what it is, or what it holds."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

from sapwood.tree.guards.scope import ATOMS
from sapwood.tree.guards.standard import BYTES, bytes_of, is_host_array
from sapwood.tree.nests.containers import Identity, constant_key


def is_tensor(value: object) -> bool:
    """Return whether a value is one of torch's tensors, wherever it lies."""
    torch = sys.modules.get("torch")
    # None while torch is being imported.
    tensor = getattr(torch, "Tensor", None)
    return tensor is not None and issubclass(type(value), tensor)


def _bytes_of_tensor(value: Any, most: int) -> tuple[Hashable, bytes] | None:
    """Return how a tensor on the host looks, and all bytes that it views.

    None where they are more than ``most``, or nowhere. No operation is run for that:
    somebody may be told of those.
    """
    try:
        storage = value.untyped_storage()
        if storage.device.type != "cpu" or storage.nbytes() > most:
            return None
        where = storage.data_ptr()
        looks = (
            tuple(value.shape),
            value.stride(),
            value.storage_offset(),
            str(value.dtype),
            (value.is_conj(), value.is_neg(), value.requires_grad),
        )
    except RuntimeError:
        return None  # it is sparse, or has no bytes
    return looks, ctypes.string_at(where, storage.nbytes()) if where else b""


class Contents(NamedTuple):
    """What an object that may change while it stays the same is compared by."""

    kind: Hashable
    bytes: bytes


def constant_of(value: Any) -> Hashable:
    """Return what a constant is compared by; small host arrays by their contents."""
    cls: Any = type(value)
    if cls in ATOMS:
        return constant_key(value)
    if cls is FunctionType:
        return Identity(value)
    if is_host_array(cls):
        kind = str(getattr(value, "dtype", ""))
        looks: tuple[Hashable, ...] = (cls, *_looks_of(value), kind)
        if value.nbytes <= BYTES and "O" not in kind and kind != "object":
            return Contents(looks, value.tobytes())
        return (*looks, Identity(value))
    if is_tensor(value):
        seen = _bytes_of_tensor(value, BYTES)
        return Identity(value) if seen is None else Contents((cls, seen[0]), seen[1])
    key = constant_key(value)
    if cls is bytearray or type(key) is Identity:
        contents = bytes_of(value)
        if contents is not None:
            told = _looks_of(value) if cls is memoryview else ()
            return Contents((cls, getattr(value, "typecode", None), *told), contents)
    return key


def is_left_out(value: Any, frozen: Hashable) -> bool:
    """Return whether a value has contents that what it is ``frozen`` to leaves out."""
    cls = type(value)
    host = is_host_array(cls) or is_tensor(value)
    return host and not isinstance(frozen, Contents)


def kept_bytes(value: Any) -> Callable[[], object]:
    """Return what puts back the bytes that an object holds now that is looked into."""
    if hasattr(value, "copy") and hasattr(value, "shape"):
        return partial(_put_array_back, value, value.copy())
    return partial(put_contents, value, Contents((), bytes_of(value) or b""))


def put_contents(value: Any, then: Contents) -> None:
    """Give an object the bytes that it held, where it looks as it did."""
    with suppress(BufferError, TypeError, ValueError):  # it may only be read by now
        if is_tensor(value):
            now = constant_of(value)
            if isinstance(now, Contents) and now.kind == then.kind and now != then:
                where = value.untyped_storage().data_ptr()
                ctypes.memmove(where, then.bytes, len(then.bytes))
        elif type(value) is bytearray:
            value[:] = then.bytes
        elif hasattr(value, "copy") and hasattr(value, "shape"):
            old = value.copy()
            old.reshape(-1).view("u1")[:] = memoryview(then.bytes)
            _put_array_back(value, old)
        elif bytes_of(value) != then.bytes:
            with memoryview(value) as seen:
                seen.cast("B")[:] = then.bytes


def _put_array_back(array: Any, old: Any) -> None:
    if array.tobytes() != old.tobytes():
        with suppress(TypeError, ValueError):  # it may only be read by now
            array[...] = old


def _looks_of(value: Any) -> tuple[Hashable, ...]:
    """Return how a host array, or a view of memory, lies and may be used."""
    flags = getattr(getattr(value, "flags", None), "num", None)
    kind, strides = getattr(value, "format", None), getattr(value, "strides", None)
    last = flags, getattr(value, "readonly", None)
    return tuple(value.shape), strides, kind, *last
