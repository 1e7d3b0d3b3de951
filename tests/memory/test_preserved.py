"""Saving memory and putting it back is the identity, of every byte and of the books."""

from __future__ import annotations

import pytest

from sapwood.memory.snapshot import snapshot
from sapwood.tree.record.preserve import Preserved
from sapwood.units import Size


@pytest.mark.parametrize("changed", [(), (0,), (1, 3), (0, 1, 2, 3)])
def test_what_is_put_back_is_what_was_saved(bench, page, changed):
    """Whatever was written since, on any stream, by any name of the same storage."""
    device = bench.device
    sizes = [1, page // 2, page, 3 * page + 7]
    held = [device.allocate_on_heap(Size(size), device.default) for size in sizes]
    for value, storage in enumerate(held):
        bench.write(storage, 10 + value, device.default)
    saved = Preserved(device, [*held, *reversed(held)]).save()
    before = snapshot(device, {})
    other = device.new_stream()
    for place in changed:
        bench.write(held[place], 99, other)
    assert {s.address for s in saved.differing()} == {held[n].address for n in changed}
    saved.restore()
    assert saved.differing() == []
    assert [bench.read(storage, other) for storage in held] == [10, 11, 12, 13]
    assert snapshot(device, {}) == before
