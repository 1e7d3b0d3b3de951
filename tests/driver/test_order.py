"""Streams, events, and the schedules that choose when work runs."""

from __future__ import annotations

import gc
import threading
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.driver.emulated import Emulated
from sapwood.errors import DriverError, MisuseError
from tests.support.threads import in_threads


def test_a_stream_runs_its_work_in_order(lab):
    """Work on one stream sees what came before it."""
    stream, address = lab.stream(), lab.memory()
    lab.write(address, [0, 1, 2, 3], stream)
    for amount in (1, 10, 100):
        lab.launch(stream, "add", address, address, amount)
    lab.driver.copy(address + 64, address, 32, stream)
    lab.driver.set(address, 0, 8, stream)
    assert lab.read(address + 64, stream) == [111, 112, 113, 114]
    assert lab.read(address, stream) == [0, 112, 113, 114]


def test_an_upload_reads_its_data_before_it_returns(lab):
    """Changing the source afterwards changes nothing."""
    stream, address = lab.stream(), lab.memory()
    data = bytearray(b"before!!")
    lab.driver.upload(address, memoryview(data), stream)
    data[:] = b"changed!"
    assert lab.driver.download(address, 8, stream) == b"before!!"


def test_empty_transfers_touch_nothing(lab):
    """Zero bytes can be copied, set and transferred anywhere."""
    driver, stream = lab.driver, lab.stream()
    driver.copy(1, 2, 0, stream)
    driver.set(3, 0, 0, stream)
    driver.upload(4, memoryview(b""), stream)
    assert driver.download(5, 0, stream) == b""


def test_an_event_orders_streams(lab):
    """Work after a wait sees the work before the record."""
    first, second, address = lab.stream(), lab.stream(), lab.memory()
    lab.write(address, [1, 1, 1, 1], first)
    lab.order(first, second)
    lab.launch(second, "add", address + 64, address, 1)
    assert lab.read(address + 64, second) == [2] * 4


@pytest.mark.parametrize("waits", [False, True])
def test_a_missing_wait_shows(make_lab, waits):
    """Under the latest schedule an unordered read sees the old bytes.

    Waiting for the whole device orders nothing among streams.
    """
    lab = make_lab("latest")
    first, second, address = lab.stream(), lab.stream(), lab.memory()
    lab.write(address, [1, 1, 1, 1], first)
    lab.launch(second, "add", address + 64, address, 1)
    if waits:
        lab.driver.synchronize()
    assert lab.read(address + 64, second) == [0] * 4  # -1 + 1: nothing was written yet
    assert lab.read(address, first) == [1] * 4


def test_latest_runs_only_what_is_waited_for(make_lab):
    """Waiting for one stream leaves the other's work, and asking runs nothing."""
    lab = make_lab("latest")
    driver, ran = lab.driver, []
    first, second, event = lab.stream(), lab.stream(), lab.event()
    driver.call_host(lambda: ran.append(1), first)
    driver.record_event(event, first)
    driver.call_host(lambda: ran.append(2), first)
    driver.call_host(lambda: ran.append(3), second)
    assert not driver.query_stream(first)
    assert not driver.query_event(event)
    assert ran == []
    driver.synchronize_event(event)
    assert ran == [1]
    driver.synchronize_stream(first)
    assert ran == [1, 2]
    driver.synchronize()
    assert ran == [1, 2, 3]
    assert driver.query_stream(second)


def test_random_schedules_repeat_by_their_seed():
    """The same seed runs independent work in the same order, some seeds in others."""

    def order(seed):
        device, ran = Emulated(schedule=f"random:{seed}"), []
        streams = [device.create_stream() for _ in range(3)]
        for number in range(30):
            stream = streams[number % 3]
            device.call_host(lambda number=number: ran.append(number), stream)
        device.synchronize()
        device.close()
        return ran

    assert order(3) == order(3)
    assert len({tuple(order(seed)) for seed in range(5)}) > 1
    assert sorted(order(4)) == list(range(30))


@pytest.mark.parametrize("schedule", ["earliest", "random:1", "random:9"])
def test_polling_ends(make_lab, schedule):
    """Asking a random schedule often enough lets the work get done."""
    lab = make_lab(schedule)
    event, stream = lab.event(), lab.stream()
    for _ in range(10):
        lab.driver.call_host(lambda: None, stream)
    lab.driver.record_event(event, stream)
    assert any(lab.driver.query_event(event) for _ in range(1_000))
    assert lab.driver.query_stream(stream)


def test_a_wait_binds_to_the_record_before_it(lab):
    """Recording again does not change what an earlier wait waits for."""
    driver, ran = lab.driver, []
    first, second, third = (lab.stream() for _ in range(3))
    event = lab.event()
    driver.call_host(lambda: ran.append("first"), first)
    driver.record_event(event, first)
    driver.wait_event(third, event)
    driver.call_host(lambda: ran.append("second"), second)
    driver.record_event(event, second)
    driver.call_host(lambda: ran.append("third"), third)
    driver.synchronize_stream(third)
    assert ran.index("first") < ran.index("third")
    driver.synchronize_event(event)
    assert "second" in ran


def test_an_event_that_was_never_recorded_is_done(lab):
    """Waiting for it does nothing, and its time cannot be told."""
    driver, stream, event = lab.driver, lab.stream(), lab.event()
    driver.wait_event(stream, event)
    driver.synchronize_event(event)
    assert driver.query_event(event)
    with pytest.raises(DriverError, match="NOT_READY"):
        driver.elapsed(event, event)


def test_events_tell_time(lab):
    """The time between two events is that of the work between them, at least."""
    driver, stream = lab.driver, lab.stream()
    start, end, pause = lab.event(), lab.event(), threading.Event()
    driver.record_event(start, stream)
    driver.call_host(lambda: pause.wait(0.01), stream)
    driver.record_event(end, stream)
    driver.synchronize_event(end)
    assert driver.elapsed(start, end) >= 9
    assert driver.elapsed(end, start) == -driver.elapsed(start, end)


def test_work_of_a_destroyed_stream_still_runs(lab):
    """Destroying a stream loses nothing that it was given."""
    driver, ran = lab.driver, []
    stream = driver.create_stream()
    driver.call_host(lambda: ran.append(1), stream)
    driver.destroy_stream(stream)
    driver.synchronize()
    assert ran == [1]


def test_a_failure_is_reported_by_what_comes_after(lab, refused):
    """A raising kernel fails its stream and whoever waits for it, and nobody else."""
    driver, ran = lab.driver, []
    first, second, third = (lab.stream() for _ in range(3))
    lab.launch(first, "fail")
    with pytest.raises(DriverError, match="ArithmeticError") as caught:
        driver.synchronize_stream(first)
    assert isinstance(caught.value.__cause__, ArithmeticError)
    for call in (
        lambda: lab.launch(first, "fail"),
        lambda: driver.query_stream(first),
        lambda: driver.synchronize_stream(first),
        driver.synchronize,
    ):
        with refused("LAUNCH_FAILED"):
            call()
    driver.call_host(lambda: ran.append(2), second)
    driver.synchronize_stream(second)
    assert ran == [2]
    assert driver.query_stream(third)


def test_a_failure_follows_events(make_lab, refused):
    """Work ordered after failed work is lost, too."""
    lab = make_lab("latest")
    driver, ran = lab.driver, []
    first, second, event = lab.stream(), lab.stream(), lab.event()
    lab.launch(second, "add", lab.memory(), 8, 0)  # address 8 is nobody's
    driver.record_event(event, second)
    driver.wait_event(first, event)
    driver.call_host(lambda: ran.append(1), first)
    for call in (
        lambda: driver.synchronize_stream(first),
        lambda: driver.synchronize_event(event),
        lambda: driver.query_event(event),
    ):
        with refused("ILLEGAL_ADDRESS"):
            call()
    assert ran == []


def test_a_failure_that_was_told_follows_events(make_lab, refused):
    """Who waits for failed work after it was reported loses his own, too."""
    lab = make_lab("latest")
    driver, ran = lab.driver, []
    first, second, event = lab.stream(), lab.stream(), lab.event()
    lab.launch(second, "add", lab.memory(), 8, 0)  # address 8 is nobody's
    driver.record_event(event, second)
    with refused("ILLEGAL_ADDRESS"):
        driver.synchronize_event(event)
    driver.wait_event(first, event)
    with refused("ILLEGAL_ADDRESS"):
        driver.call_host(lambda: ran.append(1), first)
        driver.synchronize_stream(first)
    assert ran == []


def test_unmapping_does_not_wait(make_lab, refused):
    """Work that was not waited for finds its memory gone."""
    lab = make_lab("latest")
    stream, address = lab.stream(), lab.memory()
    lab.launch(stream, "add", address, address, 1)
    lab.driver.unmap(address, lab.page)
    with refused("ILLEGAL_ADDRESS"):
        lab.driver.synchronize_stream(stream)
    extent = lab.driver.create(lab.page)
    lab.driver.map(address, extent)
    lab.driver.release(extent)


def test_host_functions_may_make_no_device_call(lab, refused):
    """A device call inside a host function is refused, and fails the stream."""
    driver, stream = lab.driver, lab.stream()
    driver.call_host(driver.create_event, stream)
    with refused("LAUNCH_FAILED"):
        driver.synchronize_stream(stream)


def test_long_queues_neither_recurse_nor_stay(make_lab):
    """A hundred thousand items run, and are garbage afterwards."""
    lab, ran = make_lab("latest"), []
    first, second, event = lab.stream(), lab.stream(), lab.event()
    for stream in (first, second):
        for _ in range(50_000):
            lab.driver.call_host(lambda: ran.append(None), stream)
        lab.driver.record_event(event, stream)
        lab.driver.wait_event(second, event)
    lab.driver.synchronize_stream(second)
    assert len(ran) == 100_000
    gc.collect()
    items = [each for each in gc.get_objects() if type(each).__name__ == "Item"]
    assert len(items) < 10


def test_threads_share_a_device(lab):
    """Four threads on four streams each get what they computed."""
    driver = lab.driver
    work = [(lab.stream(), lab.memory()) for _ in range(4)]
    results = {}

    def run(number):
        stream, address = work[number]
        lab.write(address, [0] * 4, stream)
        for _ in range(50):
            lab.launch(stream, "add", address, address, number)
        results[number] = lab.read(address, stream)

    in_threads(*(partial(run, number) for number in range(4)))
    driver.synchronize()
    assert results == {number: [50 * number] * 4 for number in range(4)}


@st.composite
def programs(draw):
    """Return steps ``(stream, dst, src)`` over a few streams and buffers."""
    small = st.integers(0, 3)
    return draw(st.lists(st.tuples(small, small, small), min_size=1, max_size=25))


@given(programs())
def test_ordered_programs_have_one_result(make_device_lab, steps):
    """With every hazard ordered by events, all schedules compute the same."""
    results = []
    for schedule in ("earliest", "latest", "random:5", "random:6"):
        lab = make_device_lab(schedule)
        streams = [lab.stream() for _ in range(4)]
        base = lab.memory()
        lab.write(base, range(64), streams[0])
        last = {buffer: {streams[0]} for buffer in range(4)}
        for where, dst, src in steps:
            stream = streams[where]
            for other in last[dst] | last[src]:
                lab.order(other, stream)
            lab.launch(stream, "mix", base + 128 * dst, base + 128 * src, 0)
            last[src] = last[src] | {stream}
            last[dst] = {stream}
        lab.driver.synchronize()
        results.append(lab.read(base, streams[0], 64))
        lab.give_back()
        assert not any(lab.driver.live_handles().values())
        lab.driver.close()
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("name", ["", "soon", "random", "random:", "random:x"])
def test_unknown_schedules_are_refused(name):
    """A schedule that there is not is named, with those that there are."""
    with pytest.raises(MisuseError, match="earliest, latest or random"):
        Emulated(schedule=name)


def test_an_interrupt_ends_the_wait_and_the_stream(lab):
    """Ctrl-C inside a kernel reaches the caller, and its stream's work is lost."""

    def interrupt():
        raise KeyboardInterrupt

    def run():
        lab.driver.call_host(interrupt, stream)
        lab.driver.synchronize_stream(stream)

    stream = lab.stream()
    with pytest.raises(KeyboardInterrupt):
        run()
    with pytest.raises(DriverError, match="KeyboardInterrupt"):
        lab.driver.synchronize_stream(stream)
