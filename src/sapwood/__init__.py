"""Record GPU work once; replay it at driver speed."""

from __future__ import annotations

import importlib
import typing

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
from sapwood.version import __version__

if typing.TYPE_CHECKING:
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

_HOMES: typing.Final = {
    "Runtime": "sapwood.runtime",
    "default_runtime": "sapwood.runtime",
    "disabled": "sapwood.runtime",
    "eager": "sapwood.runtime",
    "graph": "sapwood.runtime",
    "load": "sapwood.runtime",
    "register_container": "sapwood.tree.containers",
    "save": "sapwood.runtime",
}
"""Where the names are from that are imported when they are first asked for.

Programs that import this library, and then never call a GPU, do not wait for it.
"""


def __getattr__(name: str) -> typing.Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sapwood' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
