"""Who holds which addresses and pages, as plain data.

Version 2: ``page`` bytes, ``limit`` in bytes or None; ``extents`` with their page
numbers, how many ranges map them, and whether they are scratch; ``live`` page
numbers; ``ranges`` with what is mapped where, ``folded`` if one extent may be in
several places, also the closed ones that wait for the end of a lease; the ``heap``'s
mapped intervals and pages, its taken blocks ``[address, size]`` and its free intervals.
`validate` and pictures work from this, never from live objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sapwood.memory.caching.picture import Picture
from sapwood.memory.device import Device
from sapwood.memory.pages import Extent, Lingering, page_numbers
from sapwood.memory.range import Range

__all__ = ["snapshot"]


def snapshot(device: Device, ranges: Mapping[str, Range]) -> dict[str, Any]:
    """Return a picture of a device's memory; ``ranges`` are by name."""
    pages = device.pages
    return {
        "version": 2,
        "page": pages.page,
        "limit": pages.limit,
        "extents": [_extent(extent) for extent in pages.extents],
        "live": list(page_numbers(pages.live)),
        "ranges": [
            *(_range(name, range_, closed=False) for name, range_ in ranges.items()),
            *(_range("closed", range_, closed=True) for range_ in pages.lingering),
        ],
        "heap": _heap(device.heap.picture(), pages.heap),
    }


def _extent(extent: Extent) -> dict[str, Any]:
    return {
        "first": extent.first,
        "pages": extent.pages,
        "ranges": extent.ranges,
        "scratch": extent.scratch,
    }


def _range(name: str, range_: Lingering, *, closed: bool) -> dict[str, Any]:
    return {
        "name": name,
        "closed": closed,
        "base": range_.base,
        "folded": range_.folded,
        "mappings": [
            {"address": address, "first": extent.first, "pages": extent.pages}
            for address, extent in range_.mappings()
        ],
    }


def _heap(heap: Picture, pages: int) -> dict[str, Any]:
    blocks = sorted(
        (block for segment in heap.segments for block in segment.blocks),
        key=lambda block: block.address,
    )
    mapped = [block for block in blocks if block.state != "unmapped"]
    spans: list[list[int]] = []
    for block in mapped:
        if spans and spans[-1][1] == block.address:
            spans[-1][1] += block.size
        else:
            spans.append([block.address, block.address + block.size])
    return {
        "spans": spans,
        "pages": pages,
        "taken": [[b.address, b.size] for b in mapped if b.state != "free"],
        "free": [[b.address, b.address + b.size] for b in mapped if b.state == "free"],
    }
