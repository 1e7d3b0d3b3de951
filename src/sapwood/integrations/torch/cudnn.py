"""Whether cuDNN is in use: to load it takes 50 ms, and seconds from a cold disk."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final

import torch

__all__ = ["may_be_in_use"]

_IF_LOADED: Final = getattr(os, "RTLD_NOLOAD", None)


def may_be_in_use() -> bool:
    """Return False where nobody in this process has used cuDNN yet.

    From version 9 on, its library is a shell that loads the one with its graphs, and
    then others, when the first handle is made.
    """
    cudnn: Any = torch.backends.cudnn
    major = (cudnn.version() or 0) // 10_000
    shell, graphs = f"libcudnn.so.{major}", f"libcudnn_graph.so.{major}"
    return not _is_loaded(shell) or _is_loaded(graphs)


def _is_loaded(library: str) -> bool:
    if _IF_LOADED is None:
        return False
    try:
        ctypes.CDLL(library, mode=_IF_LOADED | os.RTLD_LAZY)
    except OSError:
        return False
    return True
