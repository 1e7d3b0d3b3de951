"""Capture: what is recorded, what is forbidden, and what ends it."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest

from sapwood.driver.api import Access, CaptureStatus, CopyOp, HostOp, KernelOp, SetOp


def test_captured_work_runs_when_its_graph_is_launched(lab):
    """D test_graph_capture_simple: nothing runs by then; each launch runs it all."""
    driver, stream, address = lab.driver, lab.stream(), lab.memory()
    lab.write(address, [0] * 4, stream)
    driver.begin_capture(stream)
    assert driver.capture_status(stream) is CaptureStatus.ACTIVE
    lab.launch(stream, "add", address, address, 1)
    driver.copy(address + 64, address, 32, stream)
    graph = driver.end_capture(stream)
    assert driver.capture_status(stream) is CaptureStatus.NONE
    assert lab.read(address, stream) == [0] * 4
    exec_ = lab.exec_(graph)
    for _ in range(3):
        driver.launch_graph(exec_, stream)
    assert lab.read(address + 64, stream) == [3] * 4


def test_a_capture_is_a_chain_of_its_ops(lab):
    """Ops come out as they went in, each after the one before it."""
    driver, stream, address = lab.driver, lab.stream(), lab.memory()
    driver.begin_capture(stream)
    lab.launch(stream, "add", address, address, 1)
    driver.copy(address + 64, address, 32, stream)
    driver.set(address, 7, 8, stream)
    driver.call_host(print, stream)
    graph = driver.end_capture(stream)
    nodes = driver.nodes(graph)
    assert [driver.node_op(node) for node in nodes] == [
        lab.op("add", address, address, 1),
        CopyOp(address + 64, address, 32),
        SetOp(address, 7, 8),
        HostOp(print),
    ]
    assert driver.edges(graph) == tuple(pairwise(nodes))
    driver.destroy_graph(graph)


def test_what_a_capture_has_by_now_is_counted(lab, refused):
    """Each op is one more, on whatever stream of the capture it is; nothing else is."""
    driver, address = lab.driver, lab.memory()
    first, second = lab.stream(), lab.stream()
    with refused("ILLEGAL_STATE"):
        driver.counter(first)
    driver.begin_capture(first)
    count = driver.counter(first)
    assert count() == 0
    lab.launch(first, "add", address, address, 1)
    assert count() == 1
    driver.set(address, 7, 8, first)
    lab.order(first, second)
    assert count() == driver.counter(second)() == 2
    driver.copy(address + 64, address, 32, second)
    assert count() == 3
    lab.order(second, first)
    graph = driver.end_capture(first)
    assert len(driver.nodes(graph)) == 3
    driver.destroy_graph(graph)
    with refused("ILLEGAL_STATE"):
        driver.counter(first)


def test_events_fork_and_join(lab):
    """D test_graph_is_current_stream_capturing: who waits for captured work joins."""
    driver, address = lab.driver, lab.memory()
    first, second, third = (lab.stream() for _ in range(3))
    lab.write(address, range(1, 65), first)
    driver.synchronize()
    driver.begin_capture(first)
    lab.launch(first, "add", address, address, 1)
    lab.order(first, second)
    lab.order(first, third)
    assert driver.capture_status(second) is CaptureStatus.ACTIVE
    lab.launch(second, "add", address + 64, address, 10)
    lab.launch(third, "add", address + 128, address, 20)
    lab.order(second, first)
    lab.order(third, first)
    lab.launch(first, "mix", address + 64, address + 128)
    graph = driver.end_capture(first)
    for stream in (first, second, third):
        assert driver.capture_status(stream) is CaptureStatus.NONE
    a, b, c, d = driver.nodes(graph)
    needed = {(a, b), (a, c), (b, d), (c, d)}
    assert needed <= set(driver.edges(graph)) <= {*needed, (a, d)}
    driver.launch_graph(lab.exec_(graph), first)
    expected = [(x + 1 + 10) * 31 + (x + 1 + 20) for x in (1, 2, 3, 4)]
    assert lab.read(address + 64, first) == expected


def test_a_forked_stream_must_join(lab, refused):
    """Ending with work that the origin does not wait for gives no graph."""
    driver, address = lab.driver, lab.memory()
    first, second = lab.stream(), lab.stream()
    driver.begin_capture(first)
    lab.launch(first, "add", address, address, 1)
    lab.order(first, second)
    lab.launch(second, "add", address, address, 1)
    with refused("STREAM_CAPTURE_UNJOINED"):
        driver.end_capture(first)
    for stream in (first, second):
        assert driver.capture_status(stream) is CaptureStatus.NONE
    lab.write(address, [4] * 4, second)
    assert lab.read(address, second) == [4] * 4


def test_a_fork_without_work_is_joined(lab):
    """A stream that took part and got no work need not be waited for."""
    driver, first, second = lab.driver, lab.stream(), lab.stream()
    driver.begin_capture(first)
    lab.order(first, second)
    driver.destroy_graph(driver.end_capture(first))
    assert driver.capture_status(second) is CaptureStatus.NONE


def test_a_capture_does_not_wait_for_the_outside(lab, refused):
    """Waiting for work that is not captured invalidates the capture."""
    driver, first, second, event = lab.driver, lab.stream(), lab.stream(), lab.event()
    driver.record_event(event, second)
    driver.begin_capture(first)
    with refused("STREAM_CAPTURE_ISOLATION"):
        driver.wait_event(first, event)
    assert driver.capture_status(first) is CaptureStatus.INVALIDATED
    with refused("STREAM_CAPTURE_INVALIDATED"):
        driver.end_capture(first)


FORBIDDEN = {
    "synchronize_stream": lambda lab, stream, _: lab.driver.synchronize_stream(stream),
    "query_stream": lambda lab, stream, _: lab.driver.query_stream(stream),
    "upload": lambda lab, stream, _: lab.driver.upload(0, memoryview(b"x"), stream),
    "download": lambda lab, stream, _: lab.driver.download(0, 8, stream),
    "launch_graph": lambda lab, stream, _: lab.driver.launch_graph(lab.empty, stream),
    "synchronize": lambda lab, *_: lab.driver.synchronize(),
    "query_event": lambda lab, _, event: lab.driver.query_event(event),
    "synchronize_event": lambda lab, _, event: lab.driver.synchronize_event(event),
    "elapsed": lambda lab, _, event: lab.driver.elapsed(event, event),
}


@pytest.mark.parametrize("call", FORBIDDEN)
def test_what_is_forbidden_invalidates(lab, refused, call):
    """A forbidden call fails and invalidates; ending says so; the streams go on."""
    driver, stream, event, address = lab.driver, lab.stream(), lab.event(), lab.memory()
    lab.empty = lab.exec_(driver.create_graph())
    driver.begin_capture(stream)
    driver.record_event(event, stream)
    of_event = "event" in call or call == "elapsed"
    with refused("CAPTURED_EVENT" if of_event else "STREAM_CAPTURE_UNSUPPORTED"):
        FORBIDDEN[call](lab, stream, event)
    assert driver.capture_status(stream) is CaptureStatus.INVALIDATED
    for more in (
        lambda: driver.set(address, 0, 8, stream),
        lambda: driver.record_event(event, stream),
        lambda: driver.wait_event(stream, event),
        lambda: driver.end_capture(stream),
    ):
        with refused("STREAM_CAPTURE_INVALIDATED"):
            more()
    lab.write(address, [1] * 4, stream)
    assert lab.read(address, stream) == [1] * 4


def test_memory_may_change_during_a_capture(lab):
    """Reserving, mapping and the like go on; so does work on other streams."""
    driver, first, second = lab.driver, lab.stream(), lab.stream()
    driver.begin_capture(first)
    address = lab.memory()
    driver.memory_info()
    lab.write(address, [1] * 4, second)
    assert lab.read(address, second) == [1] * 4
    driver.destroy_graph(driver.end_capture(first))


def test_another_thread_may_synchronize(lab):
    """A capture forbids waiting for the device to its own thread only."""
    driver, stream, waited = lab.driver, lab.stream(), []

    def wait():
        driver.synchronize()
        waited.append(True)

    driver.begin_capture(stream)
    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert waited == [True]
    driver.destroy_graph(driver.end_capture(stream))


def test_memory_is_mapped_while_capturing_and_by_any_thread(lab):
    """It invalidates no capture, and needs nothing of the thread."""
    driver, stream, page = lab.driver, lab.stream(), lab.page
    target, base = lab.memory(), driver.reserve(2 * page)

    def work(at):
        extent = driver.create(page)
        driver.map(at, extent)
        driver.set_access(at, page, Access.READ_WRITE)
        driver.release(extent)

    driver.begin_capture(stream)
    work(base)
    driver.set(target, 7, 64, stream)
    thread = threading.Thread(target=work, args=(base + page,))
    thread.start()
    thread.join()
    graph = driver.end_capture(stream)
    driver.launch_graph(lab.exec_(graph), stream)
    lab.write(base, [1, 2, 3, 4], stream)
    driver.copy(base + page, base, 32, stream)
    assert lab.read(base + page, stream) == [1, 2, 3, 4]
    assert driver.download(target, 64, stream) == bytes([7]) * 64
    driver.unmap(base, 2 * page)
    driver.unreserve(base, 2 * page)


def test_a_capture_ends_where_it_began(lab, refused):
    """Not on a forked stream, not on another thread, and not before it began."""
    driver, first, second = lab.driver, lab.stream(), lab.stream()
    with refused("ILLEGAL_STATE"):
        driver.end_capture(first)
    driver.begin_capture(first)
    with refused("ILLEGAL_STATE"):
        driver.begin_capture(first)
    lab.order(first, second)
    with refused("STREAM_CAPTURE_UNMATCHED"):
        driver.end_capture(second)

    def end_elsewhere():
        with refused("STREAM_CAPTURE_WRONG_THREAD"):
            driver.end_capture(first)
        ended.append(True)

    ended = []
    thread = threading.Thread(target=end_elsewhere)
    thread.start()
    thread.join()
    assert ended == [True]
    driver.destroy_graph(driver.end_capture(first))


def test_captures_do_not_merge(lab, refused):
    """A wait between two captures invalidates both."""
    driver, first, second, event = lab.driver, lab.stream(), lab.stream(), lab.event()
    driver.begin_capture(first)
    driver.begin_capture(second)
    driver.record_event(event, first)
    with refused("STREAM_CAPTURE_MERGE"):
        driver.wait_event(second, event)
    for stream in (first, second):
        with refused("STREAM_CAPTURE_INVALIDATED"):
            driver.end_capture(stream)


def test_an_event_of_an_ended_capture_is_no_event(lab, refused):
    """What it marked never happens; recording it again makes it good."""
    driver, first, second, event = lab.driver, lab.stream(), lab.stream(), lab.event()
    driver.begin_capture(first)
    driver.record_event(event, first)
    driver.destroy_graph(driver.end_capture(first))
    with refused("CAPTURED_EVENT"):
        driver.wait_event(second, event)
    driver.begin_capture(second)
    with refused("CAPTURED_EVENT"):
        driver.wait_event(second, event)
    with refused("STREAM_CAPTURE_INVALIDATED"):
        driver.end_capture(second)
    driver.record_event(event, first)
    driver.wait_event(second, event)
    driver.synchronize_event(event)


def test_a_wait_for_nothing_is_allowed(lab):
    """An event that was never recorded orders nothing, in a capture as elsewhere."""
    driver, stream, event = lab.driver, lab.stream(), lab.event()
    driver.begin_capture(stream)
    driver.wait_event(stream, event)
    driver.destroy_graph(driver.end_capture(stream))


@pytest.mark.parametrize("which", ["origin", "fork"])
def test_destroying_a_stream_invalidates_its_capture(lab, refused, which):
    """The other streams of the capture stay usable."""
    driver, address = lab.driver, lab.memory()
    gone, stays = driver.create_stream(), lab.stream()
    first, second = (gone, stays) if which == "origin" else (stays, gone)
    driver.begin_capture(first)
    lab.order(first, second)
    driver.destroy_stream(gone)
    if which == "fork":
        assert driver.capture_status(stays) is CaptureStatus.INVALIDATED
        with refused("STREAM_CAPTURE_INVALIDATED"):
            driver.end_capture(stays)
    assert driver.capture_status(stays) is CaptureStatus.NONE
    lab.write(address, [1] * 4, stays)
    assert lab.read(address, stays) == [1] * 4


def test_captured_kernels_must_be_known(lab, refused):
    """A function that does not exist is refused before it is recorded."""
    driver, stream = lab.driver, lab.stream()
    driver.begin_capture(stream)
    with refused("INVALID_HANDLE"):
        driver.launch(KernelOp(10**9, b""), stream)
    graph = driver.end_capture(stream)
    assert driver.nodes(graph) == ()
    driver.destroy_graph(graph)
