"""RMM: an allocator of this library as a memory resource."""

from __future__ import annotations

from typing import Any

from sapwood.allocator.lending import Lender, imported
from sapwood.driver.streams import raw_of


def library() -> Any:
    """Return ``rmm.mr``. Raises `MisuseError` where it cannot be imported."""
    return imported("rmm.mr", "RMM", "rmm-cu13")


def resource(lender: Lender) -> Any:
    """Return a resource for ``rmm.mr.set_current_device_resource``.

    What RMM gives back on another stream than it asked on is reused after the work of
    both.
    """

    def allocate(size: int, stream: object) -> int:
        return lender.lend(size, raw_of(stream))

    def deallocate(address: int, _size: int, stream: object) -> None:
        lender.take_back(address, raw_of(stream))

    return library().CallbackMemoryResource(allocate, deallocate)
