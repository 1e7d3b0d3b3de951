"""Who asks torch whether a capture is on: in one, libraries do other work.

They leave out what waits for the device, for example. So the session in progress is
told of the question, and may have it answered as in a capture.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import torch

from sapwood.tree.session import served

__all__ = ["capturing", "notice_askers"]

_NAME: Final = "_cuda_isCurrentStreamCapturing"
capturing: Final[Callable[[], bool]] = getattr(torch._C, _NAME)
"""Returns whether this thread's current stream is capturing; nobody is told."""

_noticed: list[object] = []
_noticing: Final = threading.Lock()


def notice_askers() -> None:
    """Have sessions told of everybody who asks, from now on.

    Names that code has bound to torch's functions still lead here: those look this one
    up when they are called.
    """
    with _noticing:
        if _noticed:
            return
        asked = _noticing_of(getattr(torch.cuda.graphs, _NAME))
        for module in (torch._C, torch.cuda.graphs):
            setattr(module, _NAME, asked)
        stream: Any = torch.cuda.Stream
        if hasattr(stream, "is_capturing"):
            stream.is_capturing = _noticing_of(stream.is_capturing)
        _noticed.append(asked)


def _noticing_of(ask: Callable[..., bool]) -> Callable[..., bool]:
    def asked(*args: Any) -> bool:
        session = served()
        if session is None:
            return ask(*args)
        session.asked()
        return session.as_captured or ask(*args)

    return asked
