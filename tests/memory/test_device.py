"""A device: the stream in use, routes, kernels, and how it ends."""

from __future__ import annotations

import threading

import pytest

from sapwood.driver.emulated import Kernel, register_module
from sapwood.errors import DriverError, MisuseError, OutOfMemory
from sapwood.memory.device import routed
from sapwood.units import Size

IMAGE = b"kernels of the memory's tests"

register_module(
    IMAGE,
    [Kernel(name, lambda _: lambda: None, lambda _: ()) for name in ("one", "two")],
)


class _Here:
    """A route on which allocations are counted, then made on the heap."""

    def __init__(self, device):
        self.device, self.streams = device, []

    def allocate(self, size, stream):
        self.streams.append(stream)
        return self.device.allocate_on_heap(size, stream)


def test_the_current_stream_is_the_innermost(bench):
    """Without one it is the default, and another device's does not count."""
    device = bench.device
    first, second = device.new_stream(), device.new_stream()
    assert device.stream() is device.default
    with first:
        with second:
            assert device.stream() is second
        assert device.stream() is first
    assert device.stream() is device.default


def test_streams_of_other_devices_are_not_current(make_bench):
    """Each device has its own."""
    mine, other = make_bench(), make_bench()
    with other.device.new_stream():
        assert mine.device.stream() is mine.device.default


def test_streams_have_names_of_their_own(bench):
    """A name is given to none twice."""
    streams = [bench.device.new_stream() for _ in range(5)]
    assert len({stream.name for stream in streams}) == 5


def test_a_route_takes_this_threads_allocations(bench):
    """Inside it, and on the current stream; other threads go to the heap."""
    device = bench.device
    route, stream = _Here(device), device.new_stream()
    device.allocate(Size(1))
    with routed(route), stream:
        device.allocate(Size(1))
        thread = threading.Thread(target=device.allocate, args=(Size(1),))
        thread.start()
        thread.join()
        with routed(None):
            device.allocate(Size(1))
    device.allocate(Size(1))
    assert route.streams == [stream]


def test_what_was_dropped_is_there_to_allocate(make_bench, page):
    """An allocation first takes back what finalisers gave."""
    device = make_bench(limit=4).device
    for _ in range(3):
        device.allocate(Size(4 * page))
    held = device.allocate(Size(4 * page))
    with pytest.raises(OutOfMemory):
        device.allocate(Size(page))
    del held


def test_a_kernel_is_found_once(bench):
    """Its module is loaded once, and its name is known by its handle."""
    device = bench.device
    one, two = device.function(IMAGE, "one"), device.function(IMAGE, "two")
    assert device.function(IMAGE, "one") == one
    assert [device.name_of(each) for each in (one, two)] == [
        (IMAGE, "one"),
        (IMAGE, "two"),
    ]
    counts = bench.recorded.counts()
    assert (counts["load_module"], counts["find_function"]) == (1, 2)
    with pytest.raises(DriverError, match="NOT_FOUND"):
        device.function(IMAGE, "three")


def test_a_closed_device_allocates_nothing(bench):
    """And says so."""
    stream = bench.device.new_stream()
    bench.device.close()
    with stream, pytest.raises(MisuseError, match="closed"):
        bench.device.allocate(Size(1))


@pytest.mark.parametrize("owns", [True, False])
def test_the_driver_goes_with_the_last_holder(make_bench, page, owns):
    """Where it is the device's own; held bytes stay readable until then."""
    bench = make_bench(owns_driver=owns)
    device, stream = bench.device, bench.device.new_stream()
    held = device.allocate(page)
    bench.write(held, 7, stream)
    device.close()
    assert not device.finished
    assert bench.read(held, stream) == 7
    del held
    assert device.finished
    assert bench.recorded.counts().get("close", 0) == owns


def test_what_a_live_range_holds_keeps_the_device(bench):
    """A device ends no sooner than the last extent."""
    device = bench.device
    extent = device.pages.create(1, scratch=False)
    device.close()
    assert not device.finished
    device.pages.release(extent)
    device.returns.append((bool, None))
    assert device.finished


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_whatever_fails_at_the_end_nothing_is_left(every_fault):
    """Each call of closing fails once: it is told, and all is given back."""

    def live(bench):
        device = bench.device
        device.function(IMAGE, "one")
        held = device.allocate(Size(100))
        bench.write(held, 1, device.default)
        del held
        device.close()

    fired = set(every_fault(live, "create", "destroy_stream", "destroy_event"))
    assert {"unload_module", "unmap", "unreserve", "synchronize"} <= fired
