"""Storages: who waits for whom, and when bytes may not be used any more."""

from __future__ import annotations

import gc
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.driver.streams import Fork
from sapwood.errors import StaleOutput
from sapwood.memory.storage import STREAM_EPOCH, Storage
from sapwood.units import Addr, Size

streams = st.integers(0, 2)
steps = st.lists(st.tuples(st.sampled_from(["read", "write"]), streams), max_size=12)


class _Token:
    def __init__(self):
        self.ends = []

    def ended(self, streams):
        self.ends.append(streams)


@settings(max_examples=60)
@given(steps, st.permutations(range(3)))
def test_readers_see_the_last_write(open_bench, steps, order):
    """In whatever order the streams run, a copy holds what was written before it."""
    with open_bench() as bench:
        _run(bench, steps, order)


def _run(bench, steps, order):
    device = bench.device
    on = [device.default, device.new_stream(), device.new_stream()]
    source = device.allocate_on_heap(Size(512), on[0])
    bench.write(source, 0, on[0])
    value, copies = 0, []
    for number, (what, stream) in enumerate(steps, 1):
        if what == "write":
            value = number
            bench.write(source, value, on[stream])
        else:
            copy = device.allocate_on_heap(Size(512), on[stream])
            bench.copy(copy, source, on[stream])
            copies.append((copy, value, on[stream]))
    for stream in order:
        on[stream].synchronize()
    assert bench.read(source, on[0]) == value
    found = [bench.read(copy, stream) for copy, _, stream in copies]
    assert found == [value for _, value, _ in copies]


def test_waits_are_made_once(bench):
    """Reading again, or writing what one wrote last, orders nothing anew."""
    device, other = bench.device, bench.device.new_stream()
    storage = device.allocate_on_heap(Size(1), device.default)
    bench.recorded.reset()
    storage.order_write(device.default)
    storage.order_write(device.default)
    storage.order_read(device.default)
    assert "wait_event" not in bench.recorded.counts()
    storage.order_read(other)
    storage.order_read(other)
    assert bench.recorded.counts()["wait_event"] == 1
    assert storage.users() == (device.default, other)
    storage.order_write(other)
    assert bench.recorded.counts()["wait_event"] == 2
    assert storage.users() == (other,)


def test_bytes_that_nobody_wrote_have_readers_only(bench):
    """A write of them is still after everybody who read."""
    device, other = bench.device, bench.device.new_stream()
    storage = device.allocate_on_heap(Size(1), device.default)
    storage.order_read(other)
    assert storage.users() == (other,)
    bench.recorded.reset()
    storage.order_write(device.default)
    assert bench.recorded.counts()["wait_event"] == 1


def test_uses_on_streams_stay(bench):
    """Reads and writes order nothing with them, and end none of them."""
    device, other = bench.device, bench.device.new_stream()
    storage = device.allocate_on_heap(Size(1), device.default)
    storage.order_write(device.default)
    before = STREAM_EPOCH.now
    storage.use_on(device.default)
    assert STREAM_EPOCH.now == before, "who wrote last is no other"
    storage.use_on(other)
    assert STREAM_EPOCH.now > before
    bench.recorded.reset()
    before = STREAM_EPOCH.now
    for _ in range(2):
        storage.order_write(device.default)
        storage.order_read(device.default)
        storage.use_on(other)
    assert "wait_event" not in bench.recorded.counts()
    assert STREAM_EPOCH.now == before
    assert storage.stream_uses == (device.default, other)
    assert set(storage.users()) == {device.default, other}


def test_the_last_holder_gives_the_bytes_back_once():
    """With the streams that may still use them, through the queue and not at once."""
    queue, token = deque(), _Token()
    storage = Storage(Addr(4096), Size(8), token, queue)
    del storage
    gc.collect()
    assert token.ends == []
    ((give_back, what),) = queue
    give_back(what)
    assert token.ends == [()]


def test_stale_bytes_say_why(bench):
    """The error names the size, the reason and the remedy; it may be held still."""
    storage = bench.device.allocate_on_heap(Size(100), bench.device.default)
    storage.check()
    storage.stale = "step ended it"
    with pytest.raises(StaleOutput, match=r"100 bytes.*step ended it.*keep="):
        storage.check()


@pytest.mark.parametrize("captured", [True, False])
def test_what_is_captured_counts_apart(bench, captured):
    """Using bytes inside a capture changes who uses them outside, unless made there."""
    device, other = bench.device, bench.device.new_stream()
    origin, token = device.new_stream(), _Token()
    storage = Storage(Addr(0), Size(8), token, device.returns, captured=captured)
    if not captured:
        storage.order_write(other)
    before = storage.users()
    driver = bench.recorded
    driver.begin_capture(origin.handle)
    with Fork(origin) as fork:
        bench.recorded.reset()
        storage.order_write(origin)
        assert "wait_event" not in bench.recorded.counts()
        with other:
            storage.order_read(other)
        storage.order_write(origin)
        assert bench.recorded.counts()["wait_event"] == 3
        fork.join()
    driver.destroy_graph(driver.end_capture(origin.handle))
    assert storage.users() == ((origin,) if captured else before)


def test_what_was_never_made_goes_quietly():
    """An interrupt may come between a storage and its first attribute."""
    half = Storage.__new__(Storage)
    del half
    gc.collect()
