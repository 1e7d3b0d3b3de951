"""Torch's tensors on the host, which functions of any arrays may read.

Torch itself is not loaded for that: whoever has a tensor has loaded it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Hashable
from typing import Any

__all__ = ["bytes_of_tensor", "is_tensor", "put_tensor_back"]


def is_tensor(value: object) -> bool:
    """Return whether a value is one of torch's tensors, wherever it lies."""
    torch = sys.modules.get("torch")
    # None while torch is being imported.
    tensor = getattr(torch, "Tensor", None)
    return tensor is not None and issubclass(type(value), tensor)


def bytes_of_tensor(value: Any, most: int) -> tuple[Hashable, bytes] | None:
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


def put_tensor_back(value: Any, before: tuple[Hashable, bytes] | None) -> None:
    """Give a tensor on the host the bytes that it had, if it looks as it did."""
    now = None if before is None else bytes_of_tensor(value, len(before[1]))
    if before is not None and now is not None and now != before and now[0] == before[0]:
        where = value.untyped_storage().data_ptr()
        ctypes.memmove(where, before[1], len(before[1]))
