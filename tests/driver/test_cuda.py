"""What a GPU gives where the laws ask for more, and what is CUDA's own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest

from sapwood.driver.api import Access, KernelOp, SetOp
from sapwood.driver.cuda import Cuda
from sapwood.errors import DriverError, NoDevice, OutOfMemory

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda_image")]


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


def test_a_process_that_sees_no_gpu_has_no_device():
    """As CUDA says it."""
    told = subprocess.run(
        [sys.executable, "-c", "from sapwood.driver.cuda import Cuda; Cuda()"],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.returncode == 1
    assert "NoDevice: cuInit says: " in told.stderr


def test_memory_counts_until_nothing_needs_it(cuda):
    """An extent counts until it is released and unmapped everywhere."""
    before, page = cuda.memory_info(), cuda.abilities.page
    # Much more than what other processes take and give back on this GPU meanwhile.
    size = before.free // 8 // page * page
    base = cuda.reserve(2 * size)
    extent = cuda.create(size)
    for address in (base, base + size):
        cuda.map(address, extent)
    for give_back in (
        lambda: cuda.release(extent),
        lambda: cuda.unmap(base, size),
        lambda: cuda.unmap(base + size, size),
    ):
        assert before.free - cuda.memory_info().free > size // 2
        give_back()
    assert before.free - cuda.memory_info().free < size // 2
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
    """Where nobody said so, every word is one that is the address of some memory."""
    op = gpu.op("add", 1 << 20, 1 << 21, count=3)
    write, read = gpu.driver.pointers(op.function, op.params)
    assert (write.offset, write.lo, write.hi) == (0, 1 << 20, (1 << 20) + 24)
    assert (read.offset, read.lo, read.hi) == (8, 1 << 21, (1 << 21) + 24)
    assert (write.writes, read.writes) == (True, False)
    assert (write.exact, read.exact) == (True, True)
    fail, base = gpu.functions["fail"], gpu.memory()
    assert gpu.driver.pointers(fail, op.params) == ()
    found = gpu.driver.pointers(fail, gpu.op("add", base + 8, base, count=3).params)
    assert [(p.offset, p.lo, p.hi - p.lo) for p in found] == [
        (0, base + 8, 1),
        (8, base, 1),
    ]
    assert not any(p.exact for p in found)
    with refused("INVALID_VALUE"):
        gpu.driver.pointers(op.function, b"short")


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
from sapwood.driver.api import KernelOp
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
