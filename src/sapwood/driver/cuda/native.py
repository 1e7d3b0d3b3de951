"""Where functions of CUDA's driver lie, for C that calls them."""

from __future__ import annotations

from typing import Final

from sapwood.driver.cuda.bindings import Library, unsupported

__all__ = ["address_of"]

_VERSION: Final = 13000  # CUDA 13.0, as the driver writes it


def address_of(library: Library, name: str) -> int:
    """Return where a function of CUDA's driver lies, as of CUDA 13.0."""
    cu = library.cu
    flags = cu.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_LEGACY_STREAM
    found, _ = library(cu.cuGetProcAddress, name.encode(), _VERSION, int(flags))
    if not found:
        raise unsupported(f"the driver has no {name}: install a newer one")
    return int(found)
