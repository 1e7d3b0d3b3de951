"""Snapshots: plain data that say what the objects say."""

from __future__ import annotations

import json

from sapwood.memory.range import Range
from sapwood.memory.snapshot import snapshot
from sapwood.memory.validate import validate
from sapwood.units import Addr, Mask, Size


def _recorded(device, *, pages):
    range_ = Range.reserve(device.pages)
    size = Size(pages * device.pages.page)
    storage = range_.allocate(
        size, device.default, device.returns, line=None, stays=True
    )
    range_.allocate(size, device.default, device.returns, line=None)
    span = (storage.address, Addr(storage.address + size))
    range_.place(range_.page_indices([span]), ())
    return range_, range_.mask_of(*span)


def test_an_unused_device_is_empty(make_bench, page):
    """Nothing is mapped, live, taken or free."""
    assert snapshot(make_bench(limit=9).device, {}) == {
        "version": 2,
        "page": page,
        "limit": 9 * page,
        "extents": [],
        "live": [],
        "ranges": [],
        "heap": {"spans": [], "pages": 0, "taken": [], "free": []},
    }


def test_a_picture_says_what_there_is(bench, page):
    """Open and closed ranges, live pages and blocks: as plain data, and true."""
    device = bench.device
    held, gone = device.allocate(Size(page // 2)), device.allocate(Size(page))
    del gone
    (open_, _), (closed, live) = (_recorded(device, pages=n) for n in (2, 1))
    device.pages.hold(live)
    closed.close()
    bench.drain()
    picture = snapshot(device, {"f": open_})
    assert json.loads(json.dumps(picture)) == picture
    assert validate(picture) == []
    assert picture["limit"] is None
    assert sum(1 << n for n in picture["live"]) == live
    assert [(r["name"], r["closed"]) for r in picture["ranges"]] == [
        ("f", False),
        ("closed", True),
    ]
    for range_, shown in zip((open_, closed), picture["ranges"], strict=True):
        assert shown["base"] == range_.base
        assert [(m["address"], m["first"], m["pages"]) for m in shown["mappings"]] == [
            (at, extent.first, extent.pages) for at, extent in range_.mappings()
        ]
    assert sum(e["pages"] for e in picture["extents"]) == device.pages.mapped()
    assert {e["first"]: e["scratch"] for e in picture["extents"]} == {
        e.first: e.scratch for e in device.pages.extents
    }
    base = device.heap.allocator.base
    assert picture["heap"] == {
        "spans": [[base, base + 2 * page]],
        "pages": 2,
        "taken": [[held.address, page // 2]],
        "free": [[base + page // 2, base + 2 * page]],
    }
    device.pages.drop(Mask(live))
    open_.close()
