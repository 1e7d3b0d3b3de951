"""The runtime of those who name none: made when it is first needed, one a process."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from sapwood.runtime.core import Runtime
from sapwood.runtime.graphed import GraphOptions, graphed

if TYPE_CHECKING:
    from sapwood.runtime.files import Loaded

_lock = threading.Lock()
_default: Runtime | None = None


def made_runtime() -> Runtime | None:
    """Return the process's runtime, where one was made and is not closed."""
    found = _default
    return None if found is None or found.closed else found


def default_runtime() -> Runtime:
    """Return the process's runtime; after it was closed, a new one."""
    global _default  # noqa: PLW0603 - the one of the process
    found = made_runtime()
    if found is not None:
        return found
    with _lock:
        if _default is None or _default.closed:
            _default = Runtime()
            atexit.register(_default.close)
        return _default


def graph(fn: Callable[..., Any] | None = None, **options: Unpack[GraphOptions]) -> Any:
    """Return ``fn`` as a function whose calls are recorded and replayed.

    It is graphed on the default runtime: that of the process when it is called.
    Without ``fn``, returns a decorator. The options are, by keyword:

    ``name``: what messages and reports call it; else the function's own name.
    ``donate``: parameters whose arrays a call may overwrite, and whose leases it
    ends, unless it returns them: a name, or several.
    ``pinned``: parameters whose arrays are always at the same address: likewise.
    ``max_variants``: how many recordings one signature may have; 4.
    ``max_recordings``: how many the function may have; 64.
    ``fullgraph``: True raises `CaptureError` where a call cannot be recorded; else
    it runs eagerly, with a `GraphSkipWarning`.
    ``verify``: n holds every n-th replay against an eager run, and 0, the default,
    none; functions with eager regions are left out, which would run twice.

    docs/graph.md says more of them. Raises `MisuseError` for a kind of function that
    cannot be graphed, and for wrong options.
    """
    return graphed(default_runtime, fn, options)


def load(path: str | os.PathLike[str]) -> Loaded:
    """Load a function onto the default runtime: see `Runtime.load`."""
    return default_runtime().load(path)
