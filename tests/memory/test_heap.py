"""Eager arrays: bytes handed over between streams, and given back."""

from __future__ import annotations

import pytest

from sapwood.errors import DriverError, OutOfMemory
from sapwood.memory.snapshot import snapshot
from sapwood.memory.validate import validate
from sapwood.units import Size


def _make(bench, size, stream=None):
    return bench.device.allocate_on_heap(Size(size), stream or bench.device.default)


@pytest.mark.parametrize("through", ["whole", "split", "merge"])
def test_bytes_taken_over_are_written_after_their_last_use(bench, page, through):
    """Work queued on a dropped array never meets that of the next one."""
    device = bench.device
    streams = [device.default, *(device.new_stream() for _ in range(2))]
    olds = [_make(bench, page, streams[0]), _make(bench, page, streams[1])]
    for stream, old in zip(streams, olds, strict=False):
        bench.write(old, 1, stream)
    span = range(olds[0].address, olds[1].address + page)
    del old
    olds.clear()
    size = {"whole": page, "split": page // 2, "merge": 2 * page}[through]
    news = []
    for _ in range(2 * page // size):
        news.append(_make(bench, size, streams[2]))
        assert news[-1].address in span
        bench.write(news[-1], 2, streams[2])
    for stream in reversed(streams):
        stream.synchronize()
    assert [bench.read(new, streams[2]) for new in news] == [2] * len(news)


def test_who_writes_first_waits_through_whom_it_was_made_for(bench, page):
    """An array made for one stream and written on another is after its old bytes."""
    device = bench.device
    first, second, third = (device.new_stream() for _ in range(3))
    old = _make(bench, page, first)
    bench.write(old, 1, first)
    del old
    new = _make(bench, page, second)
    bench.write(new, 2, third)
    for stream in (third, first, second):
        stream.synchronize()
    assert bench.read(new, third) == 2


def test_bytes_that_nobody_uses_are_waited_for_by_nobody(bench, page):
    """Fresh bytes, and those used on the same stream, cost no wait."""
    stream = bench.device.new_stream()
    bench.recorded.reset()
    for _ in range(3):
        bench.write(_make(bench, page, stream), 1, stream)
    assert "wait_event" not in bench.recorded.counts()
    assert bench.recorded.counts()["create"] == 1


def test_the_heap_grows_by_what_is_missing(bench, page):
    """The free end counts; the books of pages and bytes are true meanwhile."""
    held = [_make(bench, 3 * page)]
    last = _make(bench, page)
    del last
    bench.drain()
    held.append(_make(bench, 2 * page))
    heap = bench.device.heap
    assert heap.used() == 5 * page
    assert bench.device.pages.heap == 5
    assert bench.free_pages() == 64 - 5
    assert validate(snapshot(bench.device, {})) == []


def test_trimming_gives_back_what_was_made_last(bench, page):
    """Pages behind the last array go, and what is written on them is done first."""
    heap, stream = bench.device.heap, bench.device.default
    low, high = _make(bench, page), _make(bench, 4 * page)
    bench.write(high, 1, stream)
    assert heap.trim() == 0
    del high
    bench.drain()
    assert heap.trim() == 4 * page
    stream.synchronize()
    assert bench.free_pages() == 63
    del low
    bench.drain()
    assert heap.trim() == page
    assert heap.trim() == 0
    again = _make(bench, page)
    assert again.address == heap.allocator.base


def test_a_heap_without_memory_says_so_and_goes_on(make_bench, page):
    """What is held stays as it is, and smaller arrays are still made."""
    bench = make_bench(limit=8)
    held = _make(bench, 6 * page)
    bench.write(held, 3, bench.device.default)
    with pytest.raises(OutOfMemory) as caught:
        _make(bench, 3 * page)
    assert caught.value.free == 2 * page
    assert bench.read(held, bench.device.default) == 3
    assert _make(bench, 2 * page).size == 2 * page


def test_the_free_end_is_not_reclaimed_to_make_room_there(make_bench, page):
    """An array that does not fit is out of memory, and no endless exchange of pages."""
    bench = make_bench(limit=16)
    heap, pages = bench.device.heap, bench.device.pages
    pages.reclaim = lambda: heap.trim() > 0
    held = [_make(bench, 12 * page)]
    for free in (3, 4):
        dropped = _make(bench, free * page)
        del dropped
        with pytest.raises(OutOfMemory):
            _make(bench, 5 * page)
    held.append(_make(bench, 4 * page))
    assert pages.heap == 16


def test_closing_leaves_what_is_held(bench, page):
    """Held arrays stay readable; the last one takes the addresses along."""
    stream = bench.device.default
    low, high = _make(bench, page), _make(bench, page)
    bench.write(low, 1, stream)
    bench.device.close()
    assert bench.read(low, stream) == 1
    del high
    assert bench.free_pages() == 63
    assert bench.device.heap.allocator.base is not None
    del low
    assert bench.free_pages() == 64
    assert bench.device.heap.allocator.base is None


def test_whatever_fails_nothing_is_left(every_fault):
    """Each driver call of the heap fails once: it is told, and all comes back."""

    def live(bench):
        device, page = bench.device, bench.device.pages.page
        other = device.own_stream("other")
        bench.write(_make(bench, page), 1, device.default)
        kept = _make(bench, page // 2, other)
        bench.write(kept, 2, other)
        _make(bench, 3 * page, other)
        del kept
        bench.drain()
        device.heap.trim()
        device.default.synchronize()

    fired = set(every_fault(live, "create"))
    assert {"reserve", "create", "map", "set_access", "release", "unmap"} <= fired
    assert {"wait_event", "record_event", "synchronize_stream"} <= fired


def test_bytes_that_cannot_be_waited_for_stay_free(bench, page):
    """Where a wait fails, the block is given back with all that it must wait for."""
    device, other = bench.device, bench.device.new_stream()
    old = _make(bench, page)
    bench.write(old, 1, device.default)
    address = old.address
    del old
    bench.drain()
    bench.faulty.position, bench.faulty.plan = 0, range(3)
    with pytest.raises(DriverError, match="on purpose"):
        _make(bench, page, other)
    bench.faulty.plan = ()
    new = _make(bench, page, other)
    assert new.address == address
    bench.write(new, 2, other)
    other.synchronize()
    device.default.synchronize()
    assert bench.read(new, other) == 2


def test_what_an_interrupt_stops_is_given_back(bench, page, monkeypatch):
    """Control-C while old work is to be waited for: the bytes are free, and known."""
    device, other = bench.device, bench.device.new_stream()
    old = _make(bench, page)
    bench.write(old, 1, device.default)
    del old
    device.returns.drain()
    before = device.heap.used()

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(other), "wait", stop)
        _make(bench, page, other)
    assert device.heap.used() == before
    assert device.default in device.heap.uses.streams()
