"""Graphs and captures on a GPU: what is CUDA's own of them."""

from __future__ import annotations

import ctypes
import gc
import struct
import threading
import time
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.driver.api import (
    Access,
    CaptureStatus,
    CopyOp,
    EmptyOp,
    HostOp,
    KernelOp,
    SetOp,
)
from sapwood.errors import DriverError

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda_image")]


def _dies(make):
    """Return a call, and a reference that dies with it."""

    def call():
        make()

    return call, weakref.ref(call)


def _settled(reference):
    """Whether something dies soon: CUDA lets go of it on a thread of its own."""
    for _ in range(200):
        gc.collect()
        if reference() is None:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("how", ["eager", "captured", "built", "changed"])
def test_parameters_with_holes_arrive(gpu, how):
    """Packed as C packs them, whichever way the kernel is launched."""
    driver, stream, address = gpu.driver, gpu.stream(), gpu.memory()
    odd = driver.find_function(gpu.module, "odd")

    def op(a, b, c):
        return KernelOp(odd, struct.pack("<bxxxxxxxdixxxxQ", a, b, c, address))

    if how == "eager":
        driver.launch(op(1, 0.5, 3), stream)
    elif how == "captured":
        driver.begin_capture(stream)
        driver.launch(op(1, 0.5, 3), stream)
        graph = driver.end_capture(stream)
        (node,) = driver.nodes(graph)
        assert driver.node_op(node) == op(1, 0.5, 3)
        driver.launch_graph(gpu.exec_(graph), stream)
    else:
        graph = driver.create_graph()
        first = op(1, 0.5, 3) if how == "built" else op(9, 9.5, 9)
        node = driver.add_node(graph, first)
        assert driver.node_op(node) == first
        exec_ = gpu.exec_(graph)
        driver.set_op(exec_, node, op(1, 0.5, 3))
        driver.launch_graph(exec_, stream)
    assert struct.unpack("<d", driver.download(address, 8, stream)) == (4.5,)


def test_kernels_may_ask_for_much_shared_memory(gpu):
    """More than a kernel has without being told, launched and in a graph."""
    driver, stream, address = gpu.driver, gpu.stream(), gpu.memory()
    shared = driver.find_function(gpu.module, "shared")

    def op(size, at):
        params = struct.pack("<IxxxxQ", size, at)
        return KernelOp(shared, params, shared=size)

    driver.launch(op(100 << 10, address), stream)
    graph = driver.create_graph()
    node = driver.add_node(graph, op(120 << 10, address + 1))
    assert driver.node_op(node) == op(120 << 10, address + 1)
    exec_ = gpu.exec_(graph)
    driver.launch_graph(exec_, stream)
    driver.set_op(exec_, node, op(140 << 10, address + 2))
    driver.launch_graph(exec_, stream)
    assert driver.download(address, 4, stream) == b"\x07\x07\x07\xff"


def test_grids_and_blocks_are_kept(gpu):
    """What a kernel was captured with is what its op says."""
    driver, stream, address = gpu.driver, gpu.stream(), gpu.memory()
    params = gpu.op("add", address, address, 0, 0).params
    op = KernelOp(gpu.functions["add"], params, (5, 4, 3), (8, 4, 2), 1024)
    driver.begin_capture(stream)
    driver.launch(op, stream)
    graph = driver.end_capture(stream)
    assert [driver.node_op(node) for node in driver.nodes(graph)] == [op]
    driver.destroy_graph(graph)


def test_ops_of_no_bytes_do_nothing(gpu):
    """They are nodes in the order of the others, and touch nothing."""
    driver, stream, address = gpu.driver, gpu.stream(), gpu.memory()
    graph = driver.create_graph()
    first = driver.add_node(graph, SetOp(1, 7, 0))
    second = driver.add_node(graph, CopyOp(1, 2, 0), (first,))
    third = driver.add_node(graph, SetOp(address, 7, 8), (second,))
    assert driver.nodes(graph) == (first, second, third)
    assert driver.node_op(first) == EmptyOp()
    driver.launch_graph(gpu.exec_(graph), stream)
    assert driver.download(address, 9, stream) == b"\x07" * 8 + b"\xff"


def test_copies_of_host_memory_are_recorded(gpu):
    """A captured copy from a host block reads what the block holds at each launch."""
    driver, stream, address = gpu.driver, gpu.stream(), gpu.memory()
    host = driver.allocate_host(32)
    driver.begin_capture(stream)
    driver.copy(address, host, 32, stream)
    graph = driver.end_capture(stream)
    assert [driver.node_op(n) for n in driver.nodes(graph)] == [
        CopyOp(address, host, 32)
    ]
    exec_ = gpu.exec_(graph)
    for values in ([1, 2, 3, 4], [5, 6, 7, 8]):
        gpu.write(host, values, stream)
        driver.launch_graph(exec_, stream)
        assert gpu.read(address, stream) == values
    driver.free_host(host)


def test_memory_mapped_anew_serves_the_same_exec(gpu):
    """A graph goes by addresses: other pages there hold what it writes next."""
    driver, page, stream = gpu.driver, gpu.page, gpu.stream()
    base = driver.reserve(page)
    extents = [driver.create(page), driver.create(page)]
    driver.map(base, extents[0])
    driver.set_access(base, page, Access.READ_WRITE)
    graph = driver.create_graph()
    node = driver.add_node(graph, SetOp(base, 1, page))
    driver.add_node(graph, gpu.op("add", base, base, 1), (node,))
    exec_ = gpu.exec_(graph)
    for extent in (extents[1], extents[0], extents[1]):
        driver.unmap(base, page)
        driver.map(base, extent)
        driver.set_access(base, page, Access.READ_WRITE)
        driver.set(base, 0, page, stream)
        driver.launch_graph(exec_, stream)
        assert gpu.read(base, stream) == [0x0101010101010101 + 1] * 4
    driver.unmap(base, page)
    for extent in extents:
        driver.release(extent)
    driver.unreserve(base, page)


def test_a_copy_may_be_aimed_across_mappings(gpu):
    """Memory made of several extents is one interval for a changed op, too."""
    driver, page, stream = gpu.driver, gpu.page, gpu.stream()
    address, base = gpu.memory(), driver.reserve(2 * page)
    for at in (base, base + page):
        extent = driver.create(page)
        driver.map(at, extent)
        driver.release(extent)
    driver.set_access(base, 2 * page, Access.READ_WRITE)
    gpu.write(base + page - 16, [1, 2, 3, 4], stream)
    graph = driver.create_graph()
    node = driver.add_node(graph, CopyOp(address, base, 32))
    exec_ = gpu.exec_(graph)
    driver.set_op(exec_, node, CopyOp(address, base + page - 16, 32))
    driver.launch_graph(exec_, stream)
    assert gpu.read(address, stream) == [1, 2, 3, 4]
    driver.unmap(base, 2 * page)
    driver.unreserve(base, 2 * page)


def test_host_functions_of_a_graph_live_as_long_as_it_can_run(gpu):
    """Through destroyed graphs and execs, until the last launch is over."""
    driver, stream, ran = gpu.driver, gpu.stream(), []
    call, reference = _dies(lambda: ran.append(1))
    driver.begin_capture(stream)
    driver.call_host(call, stream)
    graph = driver.end_capture(stream)
    exec_ = driver.instantiate(graph)
    driver.destroy_graph(graph)
    del call
    driver.call_host(lambda: time.sleep(0.05), stream)
    for _ in range(3):
        driver.launch_graph(exec_, stream)
    driver.destroy_exec(exec_)
    driver.synchronize_stream(stream)
    assert ran == [1, 1, 1]
    assert _settled(reference)


def test_host_functions_of_lost_captures_are_forgotten(gpu, refused):
    """A capture that ends without a graph keeps nothing."""
    driver, stream = gpu.driver, gpu.stream()
    call, reference = _dies(print)
    driver.begin_capture(stream)
    driver.call_host(call, stream)
    with refused("STREAM_CAPTURE_UNSUPPORTED"):
        driver.synchronize_stream(stream)
    with refused("STREAM_CAPTURE_INVALIDATED"):
        driver.call_host(call, stream)
    with refused("STREAM_CAPTURE_INVALIDATED"):
        driver.end_capture(stream)
    del call
    assert _settled(reference)


def test_a_changed_host_function_affects_later_launches_only(gpu):
    """And is forgotten once its exec is gone and the device was waited for."""
    driver, stream, ran = gpu.driver, gpu.stream(), []
    call, reference = _dies(lambda: ran.append("after"))
    graph = driver.create_graph()
    node = driver.add_node(graph, HostOp(lambda: ran.append("before")))
    exec_ = driver.instantiate(graph)
    driver.destroy_graph(graph)
    driver.call_host(lambda: time.sleep(0.05), stream)
    driver.launch_graph(exec_, stream)
    driver.set_op(exec_, node, HostOp(call))
    del call
    driver.launch_graph(exec_, stream)
    driver.destroy_exec(exec_)
    driver.synchronize()
    assert ran == ["before", "after"]
    assert _settled(reference)


def _record(cuda, stream, work):
    cuda.begin_capture(stream)
    work()
    return cuda.end_capture(stream)


def test_what_an_op_cannot_say_is_refused(gpu, raw, refused):
    """Rows, patterns, cooperative kernels and foreign calls, recorded by others."""
    driver, stream, address = gpu.driver, gpu.stream(), gpu.memory()
    called = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
    foreign = raw.CUhostFn(ctypes.cast(called, ctypes.c_void_p).value)
    add = raw.CUfunction(gpu.functions["add"])
    op = gpu.op("add", address, address)
    block = ctypes.create_string_buffer(op.params, 32)
    places = [ctypes.addressof(block) + 8 * i for i in range(4)]
    array = (ctypes.c_void_p * 4)(*places)
    for work in (
        lambda: raw.cuMemsetD2D8Async(address, 64, 1, 8, 2, stream),
        lambda: raw.cuMemsetD32Async(address, 0x01020304, 2, stream),
        lambda: raw.cuLaunchHostFunc(stream, foreign, 0),
        lambda: raw.cuLaunchCooperativeKernel(
            add, 1, 1, 1, 1, 1, 1, 0, stream, ctypes.addressof(array)
        ),
    ):
        graph = _record(driver, stream, work)
        (node,) = driver.nodes(graph)
        with refused("NOT_SUPPORTED"):
            driver.node_op(node)
        driver.destroy_graph(graph)


def test_what_others_record_is_read(gpu, raw):
    """Patterns of one byte, and parameters in one block, are ops like all others."""
    driver, stream, address = gpu.driver, gpu.stream(), gpu.memory()
    op = gpu.op("add", address, address)
    block = ctypes.create_string_buffer(op.params, 32)
    size = ctypes.c_size_t(32)
    extra = (ctypes.c_void_p * 5)(
        1, ctypes.addressof(block), 2, ctypes.addressof(size), 0
    )
    add = raw.CUfunction(op.function)

    def work():
        raw.cuMemsetD32Async(address, 0x07070707, 2, stream)
        raw.cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, 0, ctypes.addressof(extra))

    graph = _record(driver, stream, work)
    nodes = driver.nodes(graph)
    assert [driver.node_op(node) for node in nodes] == [SetOp(address, 7, 8), op]
    driver.destroy_graph(graph)


def test_a_graph_inside_a_graph_is_refused(gpu, raw):
    """The kind of node is named, and the graph can still be launched."""
    driver, stream, inner = gpu.driver, gpu.stream(), gpu.driver.create_graph()
    outer = driver.create_graph()
    raw.cuGraphAddChildGraphNode(raw.CUgraph(outer), [], 0, raw.CUgraph(inner))
    (node,) = driver.nodes(outer)
    with pytest.raises(DriverError, match="CU_GRAPH_NODE_TYPE_GRAPH"):
        driver.node_op(node)
    driver.destroy_graph(inner)
    driver.launch_graph(gpu.exec_(outer), stream)
    driver.synchronize_stream(stream)


def test_nodes_come_after_what_they_depend_on(gpu, raw):
    """Also where somebody added an edge against the order of making."""
    driver, graph = gpu.driver, gpu.driver.create_graph()
    first, second, third = (driver.add_node(graph, EmptyOp()) for _ in range(3))
    of = raw.CUgraphNode
    raw.cuGraphAddDependencies(
        raw.CUgraph(graph), [of(third), of(second)], [of(second), of(first)], None, 2
    )
    assert driver.nodes(graph) == (third, second, first)
    assert driver.edges(graph) == ((third, second), (second, first))
    driver.destroy_graph(graph)


def test_a_capture_survives_what_is_made_and_ended_beside_it(gpu):
    """Host memory, modules, graphs, and waits for other streams, by its own thread."""
    driver, stream, other = gpu.driver, gpu.stream(), gpu.stream()
    spare, event = driver.create_graph(), gpu.event()
    driver.begin_capture(stream)
    driver.record_event(event, other)
    driver.synchronize_stream(other)
    driver.synchronize_event(event)
    assert driver.query_stream(other)
    assert driver.query_event(event)
    assert driver.elapsed(event, event) == 0
    driver.free_host(driver.allocate_host(100))
    driver.destroy_exec(driver.instantiate(spare))
    driver.destroy_event(driver.create_event())
    driver.destroy_stream(driver.create_stream())
    module = driver.load_module(driver._kernels.modules.values[gpu.module][1])
    driver.find_function(module, "add")
    driver.unload_module(module)
    assert driver.capture_status(stream) is CaptureStatus.ACTIVE
    driver.destroy_graph(driver.end_capture(stream))
    driver.destroy_graph(spare)


def _mixed(lab, streams, base, steps):
    """Do what the steps ``(stream, dst, src)`` say, with every hazard ordered."""
    first, *others = streams
    last = {buffer: {first} for buffer in range(4)}
    for other in others:
        lab.order(first, other)
    for where, dst, src in steps:
        stream = streams[where]
        for other in (last[dst] | last[src]) - {stream}:
            lab.order(other, stream)
        lab.launch(stream, "mix", base + 128 * dst, base + 128 * src)
        last[src] = last[src] | {stream}
        last[dst] = {stream}
    for other in others:
        lab.order(other, first)


def _rebuilt(driver, graph):
    """Return a graph made from what another says of itself, which is destroyed."""
    copy, made = driver.create_graph(), {}
    edges = driver.edges(graph)
    for node in driver.nodes(graph):
        after = tuple([made[a] for a, b in edges if b == node])
        made[node] = driver.add_node(copy, driver.node_op(node), after)
    driver.destroy_graph(graph)
    return copy


def _result(lab, how, steps):
    """Return what the steps compute on a device that is closed afterwards."""
    driver, streams = lab.driver, [lab.stream() for _ in range(4)]
    base = lab.memory()
    lab.write(base, range(64), streams[0])
    if how == "eager":
        _mixed(lab, streams, base, steps)
    else:
        driver.synchronize()
        driver.begin_capture(streams[0])
        _mixed(lab, streams, base, steps)
        graph = driver.end_capture(streams[0])
        if how == "rebuilt":
            graph = _rebuilt(driver, graph)
        driver.launch_graph(lab.exec_(graph), streams[0])
    found = lab.read(base, streams[0], 64)
    lab.give_back()
    assert not any(driver.live_handles().values())
    driver.close()
    return found


buffers = st.integers(0, 3)


@given(st.lists(st.tuples(buffers, buffers, buffers), min_size=1, max_size=20))
def test_programs_compute_what_they_do_on_the_emulated_device(
    make_device_lab, make_cuda_lab, steps
):
    """Run, captured and launched, and built anew from what was captured."""
    expected = _result(make_device_lab("latest"), "eager", steps)
    for how in ("captured", "rebuilt"):
        assert _result(make_device_lab("latest"), how, steps) == expected
    for how in ("eager", "captured", "rebuilt"):
        assert _result(make_cuda_lab(), how, steps) == expected


@pytest.mark.parametrize("which", ["origin", "fork"])
def test_what_a_stream_had_to_do_before_it_captures_is_waited_for(gpu, which):
    """By another thread that waits for the device, though the stream captures."""
    driver, ran, seen = gpu.driver, [], []
    origin, fork = gpu.stream(), gpu.stream()
    busy = origin if which == "origin" else fork
    driver.call_host(lambda: (time.sleep(0.05), ran.append(1)), busy)
    driver.begin_capture(origin)
    gpu.order(origin, fork)

    def wait():
        driver.synchronize()
        seen.extend(ran)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert seen == [1]
    driver.destroy_graph(driver.end_capture(origin))


def test_captures_go_on_while_other_threads_work(gpu):
    """Whatever threads make, end and wait for, a thread's captures are its own."""
    driver, address = gpu.driver, gpu.memory()
    stop, failed = threading.Event(), []

    def disturb():
        try:
            while not stop.is_set():
                stream, event = driver.create_stream(), driver.create_event()
                driver.upload(address, memoryview(bytes(64)), stream)
                driver.record_event(event, stream)
                driver.synchronize()
                driver.synchronize_event(event)
                driver.free_host(driver.allocate_host(64))
                driver.destroy_event(event)
                driver.destroy_stream(stream)
        except DriverError as error:
            failed.append(error)

    threads = [threading.Thread(target=disturb) for _ in range(3)]
    for thread in threads:
        thread.start()
    first, second = gpu.stream(), gpu.stream()
    there, back = gpu.event(), gpu.event()
    try:
        for _ in range(300):
            driver.begin_capture(first)
            driver.set(address + 128, 1, 8, first)
            driver.record_event(there, first)
            driver.wait_event(second, there)
            driver.set(address + 256, 1, 8, second)
            driver.record_event(back, second)
            driver.wait_event(first, back)
            graph = driver.end_capture(first)
            assert len(driver.nodes(graph)) == 2
            exec_ = driver.instantiate(graph)
            driver.destroy_graph(graph)
            driver.launch_graph(exec_, first)
            driver.destroy_exec(exec_)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failed == []
    assert driver.download(address + 128, 8, first) == b"\x01" * 8
