"""Allocators of this library for others, by the library's name and the GPU's number.

One lender serves a GPU for as long as the process lives: all libraries share what it
caches.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any, Final

from sapwood.allocator.caching.allocator import Allocator
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.lending import Lender
from sapwood.driver.cuda import Cuda
from sapwood.errors import MisuseError

_ADAPTERS: Final = {
    "cupy": ("cupy_allocator", "allocator"),
    "numba": ("numba", "plugin"),
    "cuda.core": ("cuda_core", "resource"),
    "rmm": ("rmm", "resource"),
}
"""What makes an allocator for a library: a module of the integrations, and its name."""

_FOR_ALL: Final = {"cupy", "numba"}
"""Libraries that ask one allocator for the memory of every GPU; others have several."""

_lock = threading.Lock()
_lenders: dict[int, Lender] = {}


def lender(device: int = 0) -> Lender:
    """Return this process's lender of GPU number ``device``, made when first asked for.

    Its settings are those of ``SAPWOOD_ALLOC_CONF`` at that time. Raises `NoDevice`
    where there is no such GPU.
    """
    found = _lenders.get(device)
    if found is not None:
        return found
    with _lock:
        if device not in _lenders:
            settings = Settings.from_env()
            driver = Cuda(device)
            allocator = Allocator(driver, settings, index=device)
            _lenders[device] = Lender(allocator, driver, device)
        return _lenders[device]


def allocator_for(library: str, device: int = 0) -> Any:
    """Return what a library wants of an allocator.

    ``"cupy"``: a function for ``cupy.cuda.set_allocator``; ``"numba"``: a class for
    ``numba.cuda.set_memory_manager``; ``"rmm"``: a resource for
    ``rmm.mr.set_current_device_resource``; ``"cuda.core"``: a ``MemoryResource``. The
    last two are for GPU number ``device``. Raises `MisuseError` for other names, and
    where the library is not there.
    """
    if library in _ADAPTERS:
        adapter = _adapter(*_ADAPTERS[library])
        return adapter(lender if library in _FOR_ALL else lender(device))
    known = ", ".join(_ADAPTERS)
    raise MisuseError(
        f"no allocator for {library!r}: choose from {known}; for PyTorch, torch_pool"
    )


def torch_pool(size: int, device: int = 0, **options: bool) -> Any:
    """Return ``size`` bytes of GPU number ``device`` as a pool for PyTorch.

    ``options`` are ``no_split`` and ``use_on_oom``, as ``torch.cuda.MemPool`` has them.
    Raises `OutOfMemory`, and `MisuseError` where there is no PyTorch with CUDA.
    """
    return _adapter("torch_pool", "open_pool")(lender(device), size, **options)


def _adapter(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"sapwood.integrations.{module}"), name)


def __getattr__(name: str) -> Any:
    # Numba asks the module named in NUMBA_CUDA_MEMORY_MANAGER for this.
    if name == "_numba_memory_manager":
        return allocator_for("numba")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
