"""What a GPU gives where the laws ask for more, and what is CUDA's own."""

from __future__ import annotations

import ctypes
import gc
import os
import struct
import subprocess
import sys
import time
import warnings
import weakref

import numpy as np
import pytest

from sapwood.driver import (
    Access,
    CaptureStatus,
    CopyOp,
    EmptyOp,
    HostOp,
    KernelOp,
    SetOp,
)
from sapwood.driver.cuda import Cuda
from sapwood.errors import DriverError, NoDevice, OutOfMemory

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda_image")]


@pytest.fixture
def cuda():
    """Return a GPU of which nothing may be left at the end."""
    device = Cuda()
    yield device
    left = device.live_handles()
    device.close()
    assert not any(left.values()), left


@pytest.fixture
def gpu(cuda, cuda_image, make_cuda_lab):
    """Return a GPU with what most tests need."""
    lab = make_cuda_lab(cuda, cuda_image)
    yield lab
    lab.give_back()


@pytest.fixture
def raw():
    """Return CUDA's own calls; each must succeed, and returns what it gives."""
    from cuda.bindings import driver

    class Raw:
        def __getattr__(self, name):
            found = getattr(driver, name)
            if not name.startswith("cu") or isinstance(found, type):
                return found

            def call(*args):
                code, *values = found(*args)
                assert not code, (name, code)
                return values[0] if len(values) == 1 else values

            return call

    return Raw()


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


def test_it_says_what_it_is(cuda):
    """Its name is the GPU's, a page is 2 MiB, and pointers are known if declared."""
    abilities = cuda.abilities
    assert abilities.kind == "cuda"
    assert "NVIDIA" in abilities.name
    assert abilities.page == 2 << 20
    assert not abilities.exact_addresses


def test_a_gpu_that_is_not_there_is_no_device():
    """The number is named."""
    with pytest.raises(NoDevice, match="GPU 99 cannot be used") as caught:
        Cuda(99)
    assert caught.value.name == "INVALID_DEVICE"
    assert caught.value.code == 101


def test_memory_counts_until_nothing_needs_it(cuda):
    """An extent counts until it is released and unmapped everywhere."""
    size = 256 * cuda.abilities.page
    before = cuda.memory_info()
    base = cuda.reserve(2 * size)
    extent = cuda.create(size)
    for address in (base, base + size):
        cuda.map(address, extent)
    for give_back in (
        lambda: cuda.release(extent),
        lambda: cuda.unmap(base, size),
        lambda: cuda.unmap(base + size, size),
    ):
        assert before.free - cuda.memory_info().free >= size
        give_back()
    assert before.free - cuda.memory_info().free < size
    cuda.unreserve(base, 2 * size)


def test_more_than_the_device_has_is_out_of_memory(cuda):
    """Creating beyond the total says what was asked for and what is free."""
    page, info = cuda.abilities.page, cuda.memory_info()
    asked = info.total - info.total % page + page
    with pytest.raises(OutOfMemory) as caught:
        cuda.create(asked)
    assert caught.value.asked == asked
    assert 0 < caught.value.free <= info.total
    assert cuda.live_handles()["extents"] == 0


def test_memory_that_may_only_be_read(gpu, refused):
    """Reading works; writing is refused when it is given to a stream."""
    stream, address = gpu.stream(), gpu.memory()
    gpu.write(address, [1, 2, 3, 4], stream)
    gpu.driver.synchronize_stream(stream)
    gpu.driver.set_access(address, gpu.page, Access.READ)
    assert gpu.read(address, stream) == [1, 2, 3, 4]
    with refused("INVALID_VALUE"):
        gpu.driver.set(address, 0, 8, stream)


def test_host_memory_can_be_copied_to_and_from(gpu, refused):
    """Blocks of host memory are addresses for copies until they are freed."""
    driver, stream, address = gpu.driver, gpu.stream(), gpu.memory()
    host = driver.allocate_host(100)
    gpu.write(host, [1, 2, 3, 4], stream)
    driver.copy(address, host, 32, stream)
    assert gpu.read(address, stream) == [1, 2, 3, 4]
    with refused("INVALID_VALUE"):
        driver.copy(host + 80, address, 21, stream)
    driver.free_host(host)
    with refused("INVALID_VALUE"):
        driver.free_host(host)
    with refused("INVALID_VALUE"):
        driver.allocate_host(0)


def test_an_upload_of_pinned_memory_reads_it_before_it_returns(gpu):
    """Though the GPU could read it in place, and later."""
    driver, stream, address = gpu.driver, gpu.stream(), gpu.memory(16)
    size = 16 * gpu.page
    host = driver.allocate_host(size)
    block = (ctypes.c_char * size).from_address(host)
    for value in (b"a", b"b"):
        ctypes.memset(host, value[0], size)
        driver.upload(address, memoryview(block).cast("B"), stream)
        ctypes.memset(host, 0, size)
        found = driver.download(address, size, stream)
        assert found == value * size
    driver.free_host(host)


def test_an_upload_takes_any_memory_view(gpu):
    """Strided, many-dimensional and read-only ones arrive in their order."""
    stream, address = gpu.stream(), gpu.memory()
    whole = np.arange(24, dtype=np.int64).reshape(4, 6)
    for array in (whole, whole[:, ::2], whole.T):
        array.flags.writeable = False
        gpu.driver.upload(address, memoryview(array), stream)
        assert gpu.read(address, stream, array.size) == array.ravel().tolist()


def test_images_that_are_not_whole_are_refused(cuda, cuda_image, refused):
    """Junk and halves of a cubin do not reach CUDA, which would read on."""
    for image in (b"nobody's image", b"", cuda_image[:100], cuda_image[:-1]):
        with refused("INVALID_IMAGE"):
            cuda.load_module(image)


def test_kernels_are_found_by_name_until_their_module_goes(gpu, cuda_image, refused):
    """Unknown names, and kernels of unloaded modules, are refused."""
    driver, stream = gpu.driver, gpu.stream()
    with refused("NOT_FOUND"):
        driver.find_function(gpu.module, "missing")
    module = driver.load_module(cuda_image)
    function = driver.find_function(module, "add")
    assert function == driver.find_function(module, "add")
    assert function != gpu.functions["add"]
    driver.unload_module(module)
    with refused("INVALID_HANDLE"):
        driver.launch(KernelOp(function, bytes(32)), stream)
    with refused("INVALID_HANDLE"):
        driver.unload_module(module)


def test_pointers_are_known_where_they_were_declared(gpu, refused):
    """Nobody said where the addresses of some kernels are: then they are not known."""
    op = gpu.op("add", 1 << 20, 1 << 21, count=3)
    write, read = gpu.driver.pointers(op.function, op.params)
    assert (write.offset, write.lo, write.hi) == (0, 1 << 20, (1 << 20) + 24)
    assert (read.offset, read.lo, read.hi) == (8, 1 << 21, (1 << 21) + 24)
    assert (write.writes, read.writes) == (True, False)
    assert gpu.driver.pointers(gpu.functions["fail"], op.params) is None
    with refused("INVALID_VALUE"):
        gpu.driver.pointers(op.function, b"short")


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


def test_a_host_function_that_raises_fails_the_device():
    """Its error is the cause of all that is refused; what is held can be given back."""
    cuda = Cuda()
    stream, other = cuda.create_stream(), cuda.create_stream()
    cuda.call_host(lambda: {}["key"], stream)
    with pytest.raises(DriverError, match="KeyError") as caught:
        cuda.synchronize_stream(stream)
    assert caught.value.name == "LAUNCH_FAILED"
    assert isinstance(caught.value.__cause__, KeyError)
    for call in (
        cuda.synchronize,
        lambda: cuda.query_stream(other),
        lambda: cuda.call_host(print, other),
        lambda: cuda.begin_capture(other),
    ):
        with pytest.raises(DriverError, match="LAUNCH_FAILED"):
            call()
    cuda.destroy_stream(stream)
    cuda.close()


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


def test_work_of_a_destroyed_stream_is_waited_for(gpu):
    """By whoever waits for the device, as long as it takes."""
    driver, ran = gpu.driver, []
    stream = driver.create_stream()
    driver.call_host(lambda: (time.sleep(0.05), ran.append(1)), stream)
    driver.destroy_stream(stream)
    driver.synchronize()
    assert ran == [1]


def test_closing_gives_everything_back(cuda_image, refused):
    """Whatever is left in it, a capture included; afterwards it refuses all."""
    holder, cuda = Cuda(), Cuda()
    page, before = cuda.abilities.page, holder.memory_info().free
    size = 256 * page
    base, extent, kept = cuda.reserve(2 * size), cuda.create(size), cuda.create(size)
    cuda.map(base, extent)
    cuda.set_access(base, size, Access.READ_WRITE)
    cuda.load_module(cuda_image)
    cuda.allocate_host(100)
    stream, capturing = cuda.create_stream(), cuda.create_stream()
    cuda.record_event(cuda.create_event(), stream)
    graph = cuda.create_graph()
    cuda.add_node(graph, SetOp(base, 1, size))
    cuda.launch_graph(cuda.instantiate(graph), stream)
    cuda.begin_capture(capturing)
    cuda.set(base, 1, size, capturing)
    assert kept != extent
    cuda.close()
    cuda.close()
    assert not any(cuda.live_handles().values())
    assert before - holder.memory_info().free < size
    for call in (
        cuda.create_stream,
        cuda.synchronize,
        lambda: cuda.synchronize_stream(stream),
        cuda.memory_info,
    ):
        with refused("DEINITIALIZED"):
            call()
    holder.close()


def test_a_forked_child_may_not_use_the_device(cuda):
    """The child is told so, and the parent goes on."""
    stream = cuda.create_stream()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # CUDA's threads
        child = os.fork()
    if not child:
        status = 1
        try:
            cuda.synchronize_stream(stream)
        except DriverError as error:
            status = 0 if "forked" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    cuda.synchronize_stream(stream)
    cuda.destroy_stream(stream)


BROKEN = """
import struct, sys
from pathlib import Path
from sapwood.driver import KernelOp
from sapwood.driver.cuda import Cuda
from sapwood.errors import DriverError

def told(call, *args):
    try:
        call(*args)
    except DriverError as error:
        return error.name
    return "nothing"

cuda = Cuda()
module = cuda.load_module(Path(sys.argv[1]).read_bytes())
function = cuda.find_function(module, sys.argv[2])
address = cuda.reserve(cuda.abilities.page)
stream, other, event = cuda.create_stream(), cuda.create_stream(), cuda.create_event()
cuda.launch(KernelOp(function, struct.pack("<4Q", address, address, 1, 1)), stream)
print(told(cuda.synchronize_stream, stream))
for call, *args in (
    (cuda.query_stream, other),
    (cuda.synchronize,),
    (cuda.record_event, event, other),
    (cuda.set, address, 0, 8, other),
    (cuda.destroy_event, event),
    (cuda.destroy_event, event),
    (cuda.close,),
    (cuda.close,),
):
    print(told(call, *args))
print(sum(cuda.live_handles().values()))
"""


@pytest.mark.parametrize(
    ("kernel", "name"), [("add", "ILLEGAL_ADDRESS"), ("fail", "LAUNCH_FAILED")]
)
def test_a_kernel_that_breaks_off_ends_the_device(cuda_image, tmp_path, kernel, name):
    """All that follows says so, giving back included, which is done all the same."""
    image = tmp_path / "image"
    image.write_bytes(cuda_image)
    told = subprocess.run(
        [sys.executable, "-W", "error", "-c", BROKEN, str(image), kernel],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    expected = [*[name] * 6, "INVALID_HANDLE", name, "nothing", "0"]
    assert told.stdout.split() == expected, told.stderr
    assert told.stderr == ""
