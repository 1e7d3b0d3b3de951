"""Streams and events as objects that own their handles."""

from __future__ import annotations

import contextvars
import gc
import threading
from collections import deque

import pytest

from sapwood.driver.api import CaptureStatus
from sapwood.driver.layers import Faulty
from sapwood.driver.streams import Event, Fork, Stream, current_stream
from sapwood.errors import DriverError, MisuseError


@pytest.fixture
def make(driver):
    """Return a maker of streams; what finalisers give back is given back at the end."""
    dropped = deque()
    names = iter("abcdef")
    yield lambda: Stream(driver, driver.create_stream(), next(names), dropped)
    gc.collect()
    while dropped:
        give_back, handle = dropped.popleft()
        give_back(handle)


def test_the_innermost_stream_is_current(driver, make):
    """``with`` blocks nest, and other threads and tasks have their own."""
    assert current_stream(driver) is None
    first, second = make(), make()
    elsewhere = []
    with first:
        with second:
            assert current_stream(driver) is second
            thread = threading.Thread(
                target=contextvars.Context().run,
                args=(lambda: elsewhere.append(current_stream(driver)),),
            )
            thread.start()
            thread.join()
        assert current_stream(driver) is first
    assert current_stream(driver) is None
    assert elsewhere == [None]


def test_blocks_end_in_reverse_order(make):
    """Leaving an outer block first is refused by the stream's name."""
    first, second = make(), make()
    first.__enter__()
    second.__enter__()
    with pytest.raises(MisuseError, match="stream a is not the current one"):
        first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    first.__exit__(None, None, None)


def test_streams_wait_for_streams_and_events(driver, make):
    """Work after a wait sees the work before it, whatever is waited for."""
    ran, first, second = [], make(), make()
    driver.call_host(lambda: ran.append(1), first.handle)
    second.wait(first)
    second.wait(second)
    driver.call_host(lambda: ran.append(2), second.handle)
    event = second.record(timing=True)
    driver.call_host(lambda: ran.append(4), second.handle)
    first.wait(event)
    driver.call_host(lambda: ran.append(3), first.handle)
    first.synchronize()
    assert [each for each in ran if each != 4] == [1, 2, 3]
    event.synchronize()
    assert event.query()
    assert first.query()
    second.synchronize()
    later = second.record(timing=True)
    later.synchronize()
    assert isinstance(later, Event)
    assert event.elapsed(later) >= 0


def test_finalisers_only_queue(driver):
    """A garbage stream makes no driver call; its handles wait to be drained."""
    dropped = deque()
    stream = Stream(driver, driver.create_stream(), "a", dropped)
    other = Stream(driver, driver.create_stream(), "b", dropped)
    other.wait(stream)
    event = stream.record()
    del stream, other, event
    gc.collect()
    live = driver.live_handles()
    assert (live["streams"], live["events"]) == (2, 2)
    for give_back, what in dropped:
        give_back(what)
    live = driver.live_handles()
    assert (live["streams"], live["events"]) == (0, 0)


def test_whoever_names_a_stream_that_ended_waits_for_its_heir(driver):
    """Work is in order although its stream is gone; others wait as if it were not."""
    ran, dropped = [], deque()

    def make(name, successor=None):
        return Stream(driver, driver.create_stream(), name, dropped, successor)

    successor, later = make("successor"), make("later")
    gone = make("gone", successor)
    driver.call_host(lambda: ran.append(1), gone.handle)
    gone.end()
    later.wait(gone)
    driver.call_host(lambda: ran.append(2), later.handle)
    later.synchronize()
    assert ran == [1, 2]
    gone.synchronize()
    assert gone.query()
    for stream in (later, successor):
        stream.end()
    live = driver.live_handles()
    assert (live["streams"], live["events"]) == (0, 0)


@pytest.mark.parametrize("call", range(5))
def test_a_stream_whose_order_cannot_be_handed_on_is_waited_for(driver, call):
    """Whichever call fails at its end, later work is in order, and nothing leaks."""
    ran, dropped = [], deque()
    faulty = Faulty(driver)
    successor = Stream(faulty, faulty.create_stream(), "successor", dropped)
    gone = Stream(faulty, faulty.create_stream(), "gone", dropped, successor)
    faulty.call_host(lambda: ran.append(1), gone.handle)
    faulty.plan = {faulty.position + call}
    with pytest.raises(DriverError, match="made to fail on purpose"):
        gone.end()
    driver.wait_event(successor.handle, gone.mark())
    driver.call_host(lambda: ran.append(2), successor.handle)
    successor.synchronize()
    assert ran == [1, 2]
    successor.end()
    live = driver.live_handles()
    assert (live["streams"], live["events"]) == (0, 0)


def test_streams_entered_while_capturing_take_part(driver, make):
    """A stream that a captured function enters is forked, and joined at the end."""
    origin, side = make(), make()
    with Fork(origin) as fork:
        driver.begin_capture(origin.handle)
        with side:
            assert driver.capture_status(side.handle) is CaptureStatus.ACTIVE
            driver.call_host(print, side.handle)
        fork.join()
        graph = driver.end_capture(origin.handle)
    assert side.fork is origin.fork is None
    assert len(driver.nodes(graph)) == 1
    driver.destroy_graph(graph)
