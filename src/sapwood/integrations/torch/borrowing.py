"""Torch's `record_stream`, on tensors whose memory torch's allocator does not know.

It would say nothing to it. So the operator is taken up just before it comes to a
device, where all ways to it meet: with autograd and without, in inference mode, and
from C++. What is torch's own goes on to torch.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import torch
from torch.library import Library, fallthrough_kernel

from sapwood.integrations.torch.storages import lent

__all__ = ["borrow", "notice_borrowers"]

_C: Any = torch._C
_KEY: Final = "BackendSelect"
_BELOW: Final = _C._dispatch_keyset_full_after(getattr(_C.DispatchKey, _KEY))
_NAME: Final = "record_stream"
_operator: Final[Any] = torch.ops.aten.record_stream.default
_noticed: list[Library] = []
_noticing: Final = threading.Lock()


def notice_borrowers() -> None:
    """Have torch's `record_stream` take effect on tensors of replays, from now on."""
    with _noticing:
        if _noticed:
            return
        library = Library("aten", "IMPL")
        library.impl(_NAME, _recorded, _KEY, with_keyset=True)
        # Torch would materialise a view of these kinds, and record on the copy.
        for kind in ("Conjugate", "Negative"):
            library.impl(_NAME, fallthrough_kernel, kind)
        _noticed.append(library)


def _recorded(keyset: Any, tensor: Any, stream: Any) -> None:
    if not borrow(tensor, stream):
        _operator.redispatch(keyset & _BELOW, tensor, stream)


def borrow(tensor: Any, stream: Any) -> bool:
    """Note that a stream uses a tensor's bytes; return whether they are lent to torch.

    Raises `MisuseError` for a stream of another device.
    """
    found = lent(tensor)
    if found is None:
        return False
    storage, storages = found
    # What is captured runs as a whole, in one order with all else.
    if storage.size and not storage.captured:
        storage.borrow(storages.stream_of(stream))
    return True
