"""Record GPU work once; replay it at driver speed."""

from __future__ import annotations

from sapwood.errors import (
    CaptureError,
    DriverError,
    InternalError,
    MisuseError,
    NoDevice,
    OutOfMemory,
    SapwoodError,
    StaleOutput,
    StoreError,
)
from sapwood.runtime import (
    Runtime,
    default_runtime,
    disabled,
    eager,
    graph,
    load,
    save,
)
from sapwood.tree.containers import register_container
from sapwood.version import __version__

__all__ = [
    "CaptureError",
    "DriverError",
    "InternalError",
    "MisuseError",
    "NoDevice",
    "OutOfMemory",
    "Runtime",
    "SapwoodError",
    "StaleOutput",
    "StoreError",
    "__version__",
    "default_runtime",
    "disabled",
    "eager",
    "graph",
    "load",
    "register_container",
    "save",
]
