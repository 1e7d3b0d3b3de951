"""Who holds which addresses and pages, as plain data.

Version 2: ``page`` bytes, ``limit`` in bytes or None; ``extents`` with their page
numbers, how many ranges map them, and whether they are scratch; ``live`` page
numbers; ``ranges`` with what is mapped where, ``folded`` if one extent may be in
several places, also the closed ones that wait for the end of a lease; the ``heap``'s
mapped intervals and pages, its taken blocks ``[address, size]`` and its free intervals.
`validate` and pictures work from this, never from live objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sapwood.memory.device import Device
from sapwood.memory.pages import page_numbers
from sapwood.memory.range import Range
from sapwood.units import Addr, Size, touching

_OF_EXTENTS = ("asleep", "first", "pages", "ranges", "scratch")


def snapshot(device: Device, ranges: Mapping[str, Range]) -> dict[str, Any]:
    """Return a picture of a device's memory; ``ranges`` are by name."""
    pages = device.pages
    return {
        "version": 2,
        "page": pages.page,
        "limit": pages.limit,
        "extents": [
            {name: getattr(extent, name) for name in _OF_EXTENTS}
            for extent in pages.extents
        ],
        "live": list(page_numbers(pages.live)),
        "ranges": [
            *(_range(name, range_, closed=False) for name, range_ in ranges.items()),
            *(_range("closed", range_, closed=True) for range_ in pages.lingering),
        ],
        "heap": _heap(device.heap.allocator.blocks(), pages.heap),
    }


def _range(name: str, range_: Range, *, closed: bool) -> dict[str, Any]:
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


def _heap(blocks: Iterable[tuple[Addr, Size, str]], pages: int) -> dict[str, Any]:
    mapped = sorted(block for block in blocks if block[2] != "unmapped")
    spans = touching((at, size) for at, size, _ in mapped)
    return {
        "spans": [[at, at + size] for at, size in spans],
        "pages": pages,
        "taken": [[at, size] for at, size, state in mapped if state != "free"],
        "free": [[at, at + size] for at, size, state in mapped if state == "free"],
    }
