"""Every law of the driver runs on every driver listed here, and is a leak test.

Those in `STRICTER` ask for more than hardware gives; test_cuda.py says what it gives.
"""

from __future__ import annotations

import ctypes
import struct
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sapwood.driver.api import Access, KernelOp, Pointer
from sapwood.driver.cuda import Cuda, declare_pointers
from sapwood.driver.emulated import Emulated, Kernel, register_module
from sapwood.errors import DriverError
from sapwood.units import Size

SCHEDULES = ("earliest", "latest", "random:1", "random:2")
PAGE = Size(1 << 16)
TOTAL = Size(64 * PAGE)
IMAGE = b"kernels of the driver's tests"
SOURCE = Path(__file__).with_name("kernels.cu")

STRICTER = {
    "test_a_bad_change_shows_at_the_launch": "a wrong address ends the process's GPU",
    "test_a_failure_is_reported_by_what_comes_after": "a trap ends the process's GPU",
    "test_a_launch_checks_memory_again_when_the_map_changed": "as above",
    "test_access_is_needed_and_checked": "as above",
    "test_addresses_given_back_are_reused_last": "CUDA reuses them first",
    "test_every_copy_is_checked": "a wrong address ends the process's GPU",
    "test_fresh_memory_is_poisoned": "CUDA gives zeros",
    "test_host_memory_can_be_copied_to_and_from": "CUDA refuses what leaves at once",
    "test_memory_counts_until_nothing_needs_it": "others use the GPU's memory, too",
    "test_modules_and_functions_are_found_by_name": "its image is the emulated one",
    "test_more_than_the_device_has_is_out_of_memory": "as above",
    "test_pointers_are_all_addresses_in_parameters": "CUDA knows what it is told",
    "test_work_may_not_leave_its_memory": "a wrong address ends the process's GPU",
}


def _view(address, count):
    return np.frombuffer((ctypes.c_char * (8 * count)).from_address(address), np.int64)


def _bind_add(params):
    dst, src, count, amount = struct.unpack("<4Q", params)
    return partial(np.add, _view(src, count), np.int64(amount), _view(dst, count))


def _bind_mix(params):
    dst, src, count, _ = struct.unpack("<4Q", params)
    to, of = _view(dst, count), _view(src, count)

    def mix():
        to[:] = to * 31 + of

    return mix


def _raise():
    raise ArithmeticError("this kernel always fails")


def _pointers(params):
    dst, src, count, _ = struct.unpack("<4Q", params)
    return (
        Pointer(0, dst, dst + 8 * count, writes=True),
        Pointer(8, src, src + 8 * count, writes=False),
    )


register_module(
    IMAGE,
    [
        Kernel("add", _bind_add, _pointers),
        Kernel("mix", _bind_mix, _pointers),
        Kernel("fail", lambda _: _raise, lambda _: ()),
    ],
)


class Lab:
    """A driver with a module, some streams and memory, all given back at the end."""

    def __init__(self, driver, image=IMAGE):
        self.driver = driver
        self.page = driver.abilities.page
        self.module = driver.load_module(image)
        self._back = [(driver.unload_module, self.module)]
        self.functions = {
            name: driver.find_function(self.module, name)
            for name in ("add", "mix", "fail")
        }

    def stream(self):
        stream = self.driver.create_stream()
        self._back.append((self.driver.destroy_stream, stream))
        return stream

    def event(self):
        event = self.driver.create_event(timing=True)
        self._back.append((self.driver.destroy_event, event))
        return event

    def memory(self, pages=1):
        """Return new memory of 64-bit integers, all -1."""
        size = pages * self.page
        address = self.driver.reserve(size)
        self._back.append((self.driver.unreserve, address, size))
        extent = self.driver.create(size)
        self.driver.map(address, extent)
        self._back.append((self.driver.unmap, address, size))
        self.driver.release(extent)
        self.driver.set_access(address, size, Access.READ_WRITE)
        return address

    def op(self, name, dst=0, src=0, amount=0, count=4):
        params = struct.pack("<4Q", dst, src, count, amount)
        return KernelOp(self.functions[name], params)

    def launch(self, stream, name, dst=0, src=0, amount=0):
        self.driver.launch(self.op(name, dst, src, amount), stream)

    def write(self, address, values, stream):
        self.driver.upload(address, memoryview(np.array(values, np.int64)), stream)

    def read(self, address, stream, count=4):
        return np.frombuffer(
            self.driver.download(address, Size(8 * count), stream), np.int64
        ).tolist()

    def order(self, earlier, later):
        """Let further work of one stream wait for the work of another so far."""
        event = self.event()
        self.driver.record_event(event, earlier)
        self.driver.wait_event(later, event)

    def exec_(self, graph):
        """Return an executable graph; the graph itself is given back."""
        handle = self.driver.instantiate(graph)
        self._back.append((self.driver.destroy_exec, handle))
        self.driver.destroy_graph(graph)
        return handle

    def give_back(self):
        for call, *args in reversed(self._back):
            call(*args)


class CudaLab(Lab):
    """The same on a GPU, whose fresh memory holds anything."""

    def memory(self, pages=1):
        address, stream = super().memory(pages), self.stream()
        self.driver.set(address, 0xFF, pages * self.page, stream)
        self.driver.synchronize_stream(stream)
        return address


def pytest_generate_tests(metafunc):
    """Run a law on the emulated device in all orders, and on a GPU where it holds."""
    if "driver" in metafunc.fixturenames:
        on = list(SCHEDULES)
        if metafunc.function.__name__ not in STRICTER:
            on.append(pytest.param("cuda", marks=pytest.mark.gpu))
        metafunc.parametrize("driver", on, indirect=True)


@pytest.fixture(scope="session")
def cuda_image():
    """Return the laws' kernels for GPU 0, whose context stays for the session."""
    holder = Cuda()
    image = _compiled(SOURCE.read_bytes())
    declare_pointers(image, {"add": _pointers, "mix": _pointers})
    yield image
    holder.close()


def _compiled(source):
    """Return CUDA C++ as a cubin for GPU 0."""
    from cuda.bindings import driver, nvrtc

    def asked(answer):
        assert not answer[0], answer
        return answer[1] if len(answer) > 1 else None

    of = driver.CUdevice_attribute
    arch = [
        asked(driver.cuDeviceGetAttribute(each, 0))
        for each in (
            of.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            of.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    ]
    program = asked(nvrtc.nvrtcCreateProgram(source, b"kernels.cu", 0, [], []))
    option = "--gpu-architecture=sm_{}{}".format(*arch).encode()
    asked(nvrtc.nvrtcCompileProgram(program, 1, [option]))
    image = bytearray(asked(nvrtc.nvrtcGetCUBINSize(program)))
    asked(nvrtc.nvrtcGetCUBIN(program, image))
    return bytes(image)


@pytest.fixture
def driver(request):
    """Return a device, emulated with 64 pages; nothing of it may be left at the end."""
    if request.param == "cuda":
        request.getfixturevalue("cuda_image")
        device = Cuda()
    else:
        device = Emulated(TOTAL, PAGE, request.param)
    yield device
    try:
        assert not any(device.live_handles().values()), device.live_handles()
        if request.param != "cuda":
            info = device.memory_info()
            assert info.free == info.total
    finally:
        device.close()


@pytest.fixture
def lab(driver, request):
    """Return a driver with what most tests need."""
    if driver.abilities.kind == "cuda":
        lab = CudaLab(driver, request.getfixturevalue("cuda_image"))
    else:
        lab = Lab(driver)
    yield lab
    with suppress(DriverError):  # a test may have made the device fail
        driver.synchronize()
    lab.give_back()


@pytest.fixture
def make_lab():
    """Return a maker of labs on an emulated device with any schedule."""
    labs = []

    def make(schedule):
        labs.append(Lab(Emulated(TOTAL, PAGE, schedule)))
        return labs[-1]

    yield make
    for lab in labs:
        lab.give_back()
        assert not any(lab.driver.live_handles().values())
        lab.driver.close()


@pytest.fixture
def refused():
    """Return a context in which a device call must fail with the named result."""

    class Refused:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            return self

        def __exit__(self, kind, error, _):
            assert isinstance(error, DriverError), f"not refused: {self.name}"
            assert error.name == self.name, error
            assert error.code > 0
            assert error.explanation
            return True

    return Refused


@pytest.fixture
def device():
    """Return a device that runs everything at once, for rules without work."""
    made = Emulated(TOTAL, PAGE)
    yield made
    made.close()


@pytest.fixture(scope="session")
def make_device_lab():
    """Return a maker of labs whose user gives everything back."""
    return lambda schedule: Lab(Emulated(TOTAL, PAGE, schedule))


@pytest.fixture
def cuda(cuda_image):  # noqa: ARG001 -- keeps the GPU's context
    """Return a GPU of which nothing may be left at the end."""
    device = Cuda()
    yield device
    left = device.live_handles()
    device.close()
    assert not any(left.values()), left


@pytest.fixture
def gpu(cuda, cuda_image):
    """Return a GPU with what most tests need."""
    lab = CudaLab(cuda, cuda_image)
    yield lab
    lab.give_back()


@pytest.fixture
def raw():
    """Return CUDA's own calls; each must succeed, and returns what it gives."""
    from cuda.bindings import driver

    class Raw:
        def __getattr__(self, name):
            found = getattr(driver, name)
            if not name.startswith("cu"):
                return found

            def call(*args):
                code, *values = found(*args)
                assert not code, (name, code)
                return values[0] if len(values) == 1 else values

            return call

    return Raw()


@pytest.fixture(scope="session")
def make_cuda_lab(cuda_image):
    """Return a maker of labs on a GPU, whose user gives everything back."""
    return lambda: CudaLab(Cuda(), cuda_image)
