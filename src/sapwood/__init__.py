"""Record GPU work once; replay it at driver speed."""

from __future__ import annotations

import importlib
import typing

from sapwood.errors import (
    CaptureError,
    DriverError,
    GraphSkipWarning,
    InternalError,
    MisuseError,
    NoDevice,
    OutOfMemory,
    SapwoodError,
    StaleOutput,
    StoreError,
    StoreWarning,
)
from sapwood.version import __version__

if typing.TYPE_CHECKING:
    from sapwood.allocator.caching.allocator import Allocator
    from sapwood.allocator.caching.settings import Settings as AllocatorSettings
    from sapwood.allocator.pinned import PinnedAllocator
    from sapwood.integrations.torch.backend import install_trees, trees
    from sapwood.integrations.torch.code_cache import install_cache
    from sapwood.persist.memory import MemoryStore
    from sapwood.persist.remote import FsspecStore, RedisStore
    from sapwood.persist.tiers import Tiers
    from sapwood.runtime.core import Runtime
    from sapwood.runtime.default import default_runtime, graph, load
    from sapwood.runtime.files import save
    from sapwood.runtime.graphed import disabled
    from sapwood.runtime.region import eager
    from sapwood.tree.nests.containers import register_container

__all__ = [
    "Allocator",
    "AllocatorSettings",
    "CaptureError",
    "DriverError",
    "FsspecStore",
    "GraphSkipWarning",
    "InternalError",
    "MemoryStore",
    "MisuseError",
    "NoDevice",
    "OutOfMemory",
    "PinnedAllocator",
    "RedisStore",
    "Runtime",
    "SapwoodError",
    "StaleOutput",
    "StoreError",
    "StoreWarning",
    "Tiers",
    "__version__",
    "default_runtime",
    "disabled",
    "eager",
    "graph",
    "install_cache",
    "install_trees",
    "load",
    "register_container",
    "save",
    "trees",
]

_HOMES: typing.Final = {
    "Allocator": "sapwood.allocator.caching.allocator",
    "AllocatorSettings": "sapwood.allocator.caching.settings",
    "FsspecStore": "sapwood.persist.remote",
    "MemoryStore": "sapwood.persist.memory",
    "PinnedAllocator": "sapwood.allocator.pinned",
    "RedisStore": "sapwood.persist.remote",
    "Runtime": "sapwood.runtime.core",
    "Tiers": "sapwood.persist.tiers",
    "default_runtime": "sapwood.runtime.default",
    "disabled": "sapwood.runtime.graphed",
    "eager": "sapwood.runtime.region",
    "graph": "sapwood.runtime.default",
    "install_cache": "sapwood.integrations.torch.code_cache",
    "install_trees": "sapwood.integrations.torch.backend",
    "load": "sapwood.runtime.default",
    "register_container": "sapwood.tree.nests.containers",
    "save": "sapwood.runtime.files",
    "trees": "sapwood.integrations.torch.backend",
}
"""Where the names are from that are imported when they are first asked for.

Programs that import this library, and then never call a GPU, do not wait for it.
"""

_THERE: typing.Final = {"AllocatorSettings": "Settings"}
"""What is called otherwise where it is from."""


def __getattr__(name: str) -> typing.Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sapwood' has no attribute {name!r}")
    module = importlib.import_module(home)
    found = globals()[name] = getattr(module, _THERE.get(name, name))
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
