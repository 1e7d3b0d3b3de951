"""What PyTorch asks of streams and events, as far as this library has them."""

from __future__ import annotations

import gc
import threading
from collections import deque

import pytest

from sapwood.driver.emulated import Emulated
from sapwood.driver.streams import Event, Stream, current_stream
from sapwood.errors import MisuseError


class Shop:
    """Makes streams and events of one driver, and gives back what they drop."""

    def __init__(self, driver):
        self.driver, self.dropped = driver, deque()
        self._names = iter("abcdefgh")

    def stream(self):
        handle = self.driver.create_stream()
        return Stream(self.driver, handle, next(self._names), self.dropped)

    def event(self, *, timing=False):
        return Event(self.driver, self.dropped, timing=timing)

    def drain(self):
        gc.collect()
        while self.dropped:
            give_back, handle = self.dropped.popleft()
            give_back(handle)


@pytest.fixture
def shop(driver):
    """Return a shop of which nothing is left at the end."""
    made = Shop(driver)
    yield made
    driver.synchronize()
    made.drain()


def test_streams(shop):
    """C test_streams: no default is made up, ``with`` switches, idle ones are done."""
    driver, first, second = shop.driver, shop.stream(), shop.stream()
    assert first.handle != second.handle
    assert driver.adopt_stream(0) not in {first.handle, second.handle}
    driver.destroy_stream(driver.adopt_stream(0))
    assert current_stream(driver) is None
    with first:
        assert current_stream(driver) is first
    assert first.query()
    first.synchronize()
    assert first.query()


def test_stream_context_manager(shop):
    """C test_stream_context_manager: the one before is current again, also by error."""
    driver, outer, inner = shop.driver, shop.stream(), shop.stream()
    with outer:
        with pytest.raises(ZeroDivisionError), inner:
            assert current_stream(driver) is inner
            raise ZeroDivisionError
        assert current_stream(driver) is outer
    assert current_stream(driver) is None


def test_stream_event_repr(shop):
    """C test_stream_event_repr: names, devices and handles, and no device call."""
    stream, event = shop.stream(), shop.event(timing=True)
    assert repr(stream) == f"<Stream a of {shop.driver.abilities.name}>"
    assert repr(event) == "<Event not recorded, with timing>"
    stream.record(event)
    assert repr(event) == f"<Event {event.handle:#x}, with timing>"
    assert ", with timing" not in repr(stream.record())


def test_events(shop):
    """C test_events: done before it is recorded, and after its work, not between."""
    stream, go, other = shop.stream(), threading.Event(), shop.stream()
    start, end = shop.event(timing=True), shop.event(timing=True)
    assert start.handle is None
    assert start.query()
    start.synchronize()
    other.wait(start)
    start.record(stream)
    assert start.handle is not None
    lazy = shop.driver.abilities.kind == "cuda"
    if lazy:
        shop.driver.call_host(lambda: go.wait(60), stream.handle)
    end.record(stream)
    if lazy:
        assert not end.query()
        go.set()
    end.synchronize()
    assert end.query()
    assert start.query()
    assert start.elapsed(end) >= 0
    assert end.elapsed(start) == -start.elapsed(end)


def test_an_event_is_pending_until_its_work_is_done():
    """C test_events: on a device that runs nothing early, asking does not help."""
    device = Emulated(schedule="latest")
    shop, ran = Shop(device), []
    stream = shop.stream()
    device.call_host(lambda: ran.append(1), stream.handle)
    event = stream.record()
    assert not event.query()
    assert not stream.query()
    event.synchronize()
    assert event.query()
    assert ran == [1]
    del stream, event
    shop.drain()
    assert not any(device.live_handles().values())
    device.close()


def test_events_elapsedtime(shop):
    """C test_events_elapsedtime: without timing, record or end there is no time."""
    stream = shop.stream()
    plain, done = stream.record(), stream.record(timing=True)
    stream.synchronize()
    with pytest.raises(MisuseError, match=r"cannot tell time: make it with timing"):
        plain.elapsed(done)
    with pytest.raises(MisuseError, match=r"cannot tell time: make it with timing"):
        done.elapsed(plain)
    with pytest.raises(MisuseError, match="was never recorded: record it on a stream"):
        done.elapsed(shop.event(timing=True))
    assert not plain.timing
    assert done.elapsed(done) == 0


def test_the_time_of_what_is_not_done_is_not_told():
    """C test_events_elapsedtime: an event whose work is pending has none yet."""
    device = Emulated(schedule="latest")
    shop = Shop(device)
    stream = shop.stream()
    start = stream.record(timing=True)
    device.call_host(lambda: None, stream.handle)
    end = stream.record(timing=True)
    with pytest.raises(MisuseError, match="is not done: synchronize with it before"):
        start.elapsed(end)
    end.synchronize()
    assert start.elapsed(end) >= 0
    del stream, start, end
    shop.drain()
    device.close()


def test_timing_is_refused_by_the_device_too(lab, refused):
    """C test_events_elapsedtime: below the objects, events have no timing either."""
    stream, event = lab.stream(), lab.driver.create_event()
    lab.driver.record_event(event, stream)
    lab.driver.synchronize_event(event)
    with refused("INVALID_HANDLE"):
        lab.driver.elapsed(event, event)
    lab.driver.destroy_event(event)


def test_an_event_can_be_recorded_again(shop):
    """It marks what was given since, and keeps its handle."""
    ran, first, second = [], shop.stream(), shop.stream()
    event = first.record()
    handle = event.handle
    shop.driver.call_host(lambda: ran.append(1), second.handle)
    assert second.record(event) is event
    assert event.handle == handle
    event.synchronize()
    assert ran == [1]


def test_waiting_for_an_unrecorded_event_is_no_wait(shop):
    """It makes no device call, so that nothing can go wrong."""
    stream, event = shop.stream(), shop.event()
    stream.wait(event)
    stream.synchronize()
    assert event.handle is None


def test_devices_do_not_order_each_other(shop):
    """A stream or event of another device is refused, with what to do."""
    device = Emulated()
    other, stream = Shop(device), shop.stream()
    foreign, event = other.stream(), shop.event()
    for use in (
        lambda: stream.wait(foreign),
        lambda: stream.wait(foreign.record()),
        lambda: stream.record(other.event()),
        lambda: event.elapsed(other.event()),
        lambda: event.record(foreign),
    ):
        with pytest.raises(MisuseError, match=r"one of another device.*synchronize\("):
            use()
    other.drain()
    foreign.end()
    foreign.dropped = deque()  # it was given back, and its finaliser would again
    device.close()


def test_a_destroyed_stream_is_not_used(shop):
    """Whatever is asked of it, the error says that it is gone."""
    gone, stream = shop.stream(), shop.stream()
    gone.end()
    gone.dropped = deque()  # it was given back, and its finaliser would again
    for use in (
        gone.__enter__,
        gone.__cuda_stream__,
        gone.query,
        gone.record,
        lambda: gone.wait(stream),
        lambda: stream.wait(gone),
    ):
        with pytest.raises(MisuseError, match="stream a was destroyed: make a new one"):
            use()
