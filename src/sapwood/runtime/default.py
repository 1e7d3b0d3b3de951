"""The runtime of those who name none: made when it is first needed, one a process."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import Any, Unpack

from sapwood.runtime.core import Runtime
from sapwood.runtime.files import Loaded
from sapwood.runtime.graphed import GraphOptions, graphed

__all__ = ["default_runtime", "graph", "load"]

_lock = threading.Lock()
_default: Runtime | None = None


def default_runtime() -> Runtime:
    """Return the process's runtime; after it was closed, a new one."""
    global _default  # noqa: PLW0603 - the one of the process
    found = _default
    if found is not None and not found.closed:
        return found
    with _lock:
        if _default is None or _default.closed:
            _default = Runtime()
            atexit.register(_default.close)
        return _default


def graph(fn: Callable[..., Any] | None = None, **options: Unpack[GraphOptions]) -> Any:
    """Graph a function on the default runtime: see `Runtime.graph`."""
    return graphed(default_runtime, fn, options)


def load(path: str | os.PathLike[str]) -> Loaded:
    """Load a function onto the default runtime: see `Runtime.load`."""
    return default_runtime().load(path)
