"""Who holds which addresses and pages, as plain data.

Version 1: ``page`` bytes, ``limit`` in bytes or None; ``extents`` with their page
numbers, how many ranges map them, and whether they are scratch; ``live`` page
numbers; ``ranges`` with what is mapped where, also the closed ones that wait for the
end of a lease; the ``heap``'s interval and pages, its taken blocks ``[address, size]``
and its free intervals. `validate` and pictures work from this, never from live objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sapwood.memory.device import Device
from sapwood.memory.pages import Lingering, page_numbers
from sapwood.memory.range import Range

__all__ = ["snapshot"]


def snapshot(device: Device, ranges: Mapping[str, Range]) -> dict[str, Any]:
    """Return a picture of a device's memory; ``ranges`` are by name."""
    pages, heap = device.pages, device.heap
    described: list[tuple[str, Lingering, bool]] = [
        (name, range_, False) for name, range_ in ranges.items()
    ]
    described += [("closed", range_, True) for range_ in pages.lingering]
    return {
        "version": 1,
        "page": pages.page,
        "limit": pages.limit,
        "extents": [
            {
                "first": extent.first,
                "pages": extent.pages,
                "ranges": extent.ranges,
                "scratch": extent.scratch,
            }
            for extent in pages.extents
        ],
        "live": list(page_numbers(pages.live)),
        "ranges": [
            {
                "name": name,
                "closed": closed,
                "base": range_.base,
                "mappings": [
                    {"address": address, "first": extent.first, "pages": extent.pages}
                    for address, extent in range_.mappings()
                ],
            }
            for name, range_, closed in described
        ],
        "heap": {
            "start": heap.blocks.start,
            "end": heap.blocks.end,
            "pages": pages.heap,
            "taken": [list(block) for block in sorted(heap.blocks.taken.items())],
            "free": [list(interval) for interval in heap.blocks.free()],
        },
    }
