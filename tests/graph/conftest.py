"""A device with a module of kernels and some memory, to capture and relink on."""

from __future__ import annotations

import ctypes
import struct
from functools import partial

import numpy as np
import pytest

from sapwood.driver.api import Access, KernelOp, Pointer
from sapwood.driver.emulated import Emulated, Kernel, register_module
from sapwood.driver.layers import Checked, Faulty
from sapwood.graphs.capture import Region
from sapwood.units import Size

PAGE = 1 << 16
COUNT = 4
IMAGE = b"kernels of the graph's tests"


def _view(address):
    raw = (ctypes.c_char * (8 * COUNT)).from_address(address)
    return np.frombuffer(raw, np.int64)


def _mix(to, of, amount):
    to[:] = to * 31 + of + amount


def _bind_mix(params):
    dst, src, amount = struct.unpack("<3Q", params)
    return partial(_mix, _view(dst), _view(src), amount)


def _pointers(params):
    dst, src, _ = struct.unpack("<3Q", params)
    return (
        Pointer(0, dst, dst + 8 * COUNT, writes=True),
        Pointer(8, src, src + 8 * COUNT, writes=False),
        Pointer(16, dst, dst, writes=False),  # an address that nothing is done with
    )


register_module(IMAGE, [Kernel("mix", _bind_mix, _pointers)])


class Bench:
    """A driver behind `Faulty` and `Checked`, a stream, and integers in memory."""

    def __init__(self):
        self.checked = Checked(Emulated(64 * PAGE, PAGE, "latest"))
        self.driver = Faulty(self.checked)
        self.stream = self.driver.create_stream()
        self.module = self.driver.load_module(IMAGE)
        self.mix = self.driver.find_function(self.module, "mix")
        self._memory = []

    def memory(self, *values):
        """Return the address of a new page that begins with these integers."""
        address = self.driver.reserve(PAGE)
        extent = self.driver.create(PAGE)
        self.driver.map(address, extent)
        self.driver.release(extent)
        self.driver.set_access(address, PAGE, Access.READ_WRITE)
        self._memory.append(address)
        self.write(address, *values)
        return address

    def write(self, address, *values):
        """Write integers, the last of them up to `COUNT` times."""
        values = [*values, *[values[-1] if values else 0] * (COUNT - len(values))]
        data = memoryview(np.array(values, np.int64))
        self.driver.upload(address, data, self.stream)

    def read(self, address):
        data = self.driver.download(address, Size(8 * COUNT), self.stream)
        return np.frombuffer(data, np.int64).tolist()

    def launch(self, dst, src, amount=0):
        """Give the kernel to the stream: ``dst = dst * 31 + src + amount``."""
        params = struct.pack("<3Q", dst, src, amount)
        self.driver.launch(KernelOp(self.mix, params), self.stream)

    def captured(self, program):
        """Return the driver graph of what ``program`` gives to the stream."""
        self.driver.begin_capture(self.stream)
        program()
        return self.driver.end_capture(self.stream)

    def named(self, function):
        assert function == self.mix
        return IMAGE, "mix"

    def function(self, image, name):
        assert image == IMAGE
        return self.driver.find_function(self.module, name)

    def regions(self, *addresses):
        """Return one region a page, in the order of symbols."""
        return [Region(a, a + PAGE, i, a) for i, a in enumerate(addresses)]

    def close(self):
        """Give everything back, and say what else was left."""
        self.driver.plan = ()
        self.driver.synchronize()
        for address in self._memory:
            self.driver.unmap(address, PAGE)
            self.driver.unreserve(address, PAGE)
        self.driver.unload_module(self.module)
        self.driver.destroy_stream(self.stream)
        leaks = self.checked.leaks()
        self.driver.close()
        return leaks


@pytest.fixture
def bench():
    """Return a device on which nothing may be left."""
    bench = Bench()
    yield bench
    assert bench.close() == {}


@pytest.fixture(scope="session")
def make_bench():
    """Return a maker of devices whose user closes them."""
    return Bench
