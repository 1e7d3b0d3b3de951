"""Streams of other libraries: adopted, used, and left to their owners."""

from __future__ import annotations

import gc
import threading
from collections import deque
from types import SimpleNamespace

import pytest

from sapwood.driver.api import Abilities, CaptureStatus
from sapwood.driver.emulated import Emulated
from sapwood.driver.layers import Checked, Faulty, Layer
from sapwood.driver.streams import Stream, raw_of
from sapwood.errors import DriverError, MisuseError

DEFAULT, LEGACY, PER_THREAD = 0, 1, 2


@pytest.fixture
def make_raw(driver):
    """Return a maker of streams that another library owns, by their raw numbers."""
    if driver.abilities.kind == "emulated":
        made = []
        yield lambda: made.append(driver.open_foreign_stream()) or made[-1]
        for each in made:
            driver.close_foreign_stream(each)
        return
    from cuda.bindings import driver as cu

    made = []

    def make():
        with driver._place.here():
            code, stream = cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
        assert not code
        made.append(stream)
        return int(stream)

    yield make
    for each in made:
        assert not cu.cuStreamDestroy(each)[0]


@pytest.fixture
def adopt(driver):
    """Return `adopt_stream`, whose handles are given back at the end."""
    adopted = {}

    def adopt(raw):
        stream = driver.adopt_stream(raw)
        adopted[stream] = raw
        return stream

    yield adopt
    driver.synchronize()
    for stream in adopted:
        driver.destroy_stream(stream)


def test_an_adopted_stream_is_a_stream(lab, make_raw, adopt):
    """Its work runs in order, and waits and is waited for by events."""
    own, other, address = lab.stream(), adopt(make_raw()), lab.memory()
    lab.write(address, [1, 1, 1, 1], own)
    lab.order(own, other)
    lab.launch(other, "add", address, address, 1)
    lab.order(other, own)
    lab.launch(own, "add", address, address, 1)
    assert lab.read(address, own) == [3] * 4
    lab.driver.synchronize_stream(other)
    assert lab.driver.query_stream(other)
    assert lab.driver.capture_status(other) is CaptureStatus.NONE


def test_a_raw_number_comes_back(driver, lab, make_raw, adopt):
    """What was adopted is called as before, however often, and by one handle."""
    for raw in (make_raw(), DEFAULT, PER_THREAD):
        stream = adopt(raw)
        assert driver.raw_stream(stream) == raw
        assert adopt(raw) == stream
    assert adopt(LEGACY) == adopt(DEFAULT)
    own = lab.stream()
    assert driver.adopt_stream(driver.raw_stream(own)) == own


def test_destroying_an_adopted_stream_forgets_it(driver, make_raw, refused):
    """The stream goes on: it can be adopted anew, and its work still runs."""
    raw, ran = make_raw(), []
    stream = driver.adopt_stream(raw)
    driver.call_host(lambda: ran.append(1), stream)
    driver.destroy_stream(stream)
    with refused("INVALID_HANDLE"):
        driver.synchronize_stream(stream)
    again = driver.adopt_stream(raw)
    driver.synchronize_stream(again)
    assert ran == [1]
    driver.destroy_stream(again)


def test_work_on_adopted_streams_is_waited_for(driver, make_raw, adopt):
    """Synchronizing with the device waits for it, on default streams too."""
    ran = []
    for number, raw in enumerate((make_raw(), DEFAULT, PER_THREAD)):
        driver.call_host(lambda number=number: ran.append(number), adopt(raw))
    driver.synchronize()
    assert sorted(ran) == [0, 1, 2]


def test_default_streams_are_used_without_a_context(lab, adopt):
    """Events, copies and graphs work on them from a thread that has done nothing."""
    driver, address = lab.driver, lab.memory()
    graph = driver.create_graph()
    driver.add_node(graph, lab.op("add", address, address, 1))
    exec_, event, done = lab.exec_(graph), lab.event(), []

    def use():
        for raw in (DEFAULT, PER_THREAD):
            stream = adopt(raw)
            driver.launch_graph(exec_, stream)
            driver.record_event(event, stream)
            driver.wait_event(stream, event)
            driver.synchronize_stream(stream)
            done.append(driver.query_stream(stream))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert done == [True, True]
    assert lab.read(address, lab.stream()) == [1] * 4


def test_each_thread_has_a_default_stream_of_its_own(driver, adopt):
    """Handles differ, and what one thread gave its own, another can wait for."""
    ran, handles = [], []

    def use():
        handles.append(adopt(PER_THREAD))
        driver.call_host(lambda: ran.append(1), handles[0])

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert adopt(PER_THREAD) not in handles
    driver.synchronize_stream(handles[0])
    assert ran == [1]


def test_the_default_stream_cannot_be_captured(driver, adopt, refused):
    """D test_graph_error: capture on the default stream is refused."""
    stream = adopt(DEFAULT)
    with refused("STREAM_CAPTURE_UNSUPPORTED"):
        driver.begin_capture(stream)
    assert driver.capture_status(stream) is CaptureStatus.NONE


def test_an_adopted_stream_can_be_captured(lab, make_raw, adopt):
    """What is recorded on it replays as any graph."""
    driver, address, stream = lab.driver, lab.memory(), adopt(make_raw())
    driver.begin_capture(stream)
    lab.launch(stream, "add", address, address, 1)
    exec_ = lab.exec_(driver.end_capture(stream))
    for _ in range(3):
        driver.launch_graph(exec_, stream)
    assert lab.read(address, stream) == [2] * 4


def test_forgetting_where_a_capture_began_ends_it(driver, make_raw):
    """Nothing of the capture is left behind, and the stream runs work again."""
    raw, ran = make_raw(), []
    stream = driver.adopt_stream(raw)
    driver.begin_capture(stream)
    driver.call_host(print, stream)
    driver.destroy_stream(stream)
    again = driver.adopt_stream(raw)
    assert driver.capture_status(again) is CaptureStatus.NONE
    driver.call_host(lambda: ran.append(1), again)
    driver.synchronize_stream(again)
    assert ran == [1]
    driver.destroy_stream(again)


def test_what_is_no_stream_is_refused(driver, refused):
    """A number that no library gave, or that CUDA could not dereference."""
    for raw in (3, 77, -1):
        with refused("INVALID_HANDLE"):
            driver.adopt_stream(raw)


def test_a_handle_is_no_raw_number(device, refused):
    """On the emulated device one taken for the other is noticed."""
    stream = device.create_stream()
    with refused("INVALID_HANDLE"):
        device.adopt_stream(stream)
    with refused("INVALID_HANDLE"):
        device.synchronize_stream(device.raw_stream(stream))


def test_an_adopted_stream_may_not_end(device, refused):
    """On the emulated device its owner is told that somebody still uses it."""
    raw = device.open_foreign_stream()
    stream = device.adopt_stream(raw)
    with refused("ILLEGAL_STATE"):
        device.close_foreign_stream(raw)
    device.destroy_stream(stream)
    device.close_foreign_stream(raw)
    with refused("INVALID_HANDLE"):
        device.adopt_stream(raw)


def test_a_lasting_stream_outlives_its_handle(lab, adopt):
    """Whoever has its number goes on using it."""
    driver, address = lab.driver, lab.memory()
    stream = driver.create_stream(lasting=True)
    raw = driver.raw_stream(stream)
    lab.write(address, [1, 1, 1, 1], stream)
    driver.destroy_stream(stream)
    again = adopt(raw)
    lab.launch(again, "add", address, address, 1)
    assert lab.read(address, again) == [2] * 4
    assert driver.raw_stream(again) == raw


def test_layers_see_adopted_streams(device):
    """They are counted as handles, checked, and made to fail as others are."""
    raw, faulty = device.open_foreign_stream(), Faulty(device)
    checked = Checked(faulty)
    stream = checked.adopt_stream(raw)
    assert checked.raw_stream(stream) == raw
    assert checked.leaks() == {"stream": 1}
    checked.destroy_stream(stream)
    assert checked.leaks() == {}
    faulty.plan = {faulty.position}
    with pytest.raises(DriverError, match="on purpose"):
        checked.adopt_stream(raw)
    assert device.live_handles()["streams"] == 0


@pytest.mark.parametrize(
    "told", [(0, 5), lambda: (0, 5)], ids=["an attribute", "a method"]
)
def test_streams_say_what_they_are_called(told):
    """A number stands for itself; an object says its own by the protocol."""
    assert raw_of(5) == 5
    assert raw_of(SimpleNamespace(__cuda_stream__=told)) == 5


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        ("stream", "'stream' is no stream: pass a CUstream"),
        (True, "True is no stream"),
        (SimpleNamespace(__cuda_stream__=lambda: (1, 5)), "version 1 of __cuda_"),
        (SimpleNamespace(__cuda_stream__=5), "is no stream"),
    ],
)
def test_what_says_it_otherwise_is_refused(stream, says):
    """The error names the object and what would do."""
    with pytest.raises(MisuseError, match=says):
        raw_of(stream)


class _Named(Layer):
    """An emulated device that says it is CUDA's."""

    @property
    def abilities(self):
        below = self.driver.abilities
        return Abilities("GPU", "cuda", below.page, below.exact_addresses)


def test_streams_speak_the_protocol():
    """C test_cuda_stream_protocol: ``(0, raw)``, also of one that was adopted."""
    device, dropped = _Named(Emulated()), deque()
    own = Stream(device, device.create_stream(), "own", dropped)
    raw = device.driver.open_foreign_stream()
    adopted = Stream(device, device.adopt_stream(raw), "adopted", dropped)
    assert adopted.__cuda_stream__() == (0, raw)
    assert own.__cuda_stream__() == (0, device.raw_stream(own.handle))
    assert device.adopt_stream(raw_of(own)) == own.handle
    del own, adopted
    gc.collect()
    device.close()


def test_a_stream_that_cuda_does_not_know_does_not_say_so(device):
    """Handing it to a CUDA library would crash the process: it is refused by name."""
    stream = Stream(device, device.create_stream(), "s1", deque())
    with pytest.raises(MisuseError, match="stream s1 is one of emulated"):
        stream.__cuda_stream__()
