"""Allocators of pinned memory on every driver; nothing may be left at the end."""

from __future__ import annotations

import ctypes
import threading
from contextlib import contextmanager

import pytest

from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.pinned import PinnedAllocator
from sapwood.driver.api import Access
from sapwood.driver.cuda import Cuda
from sapwood.driver.emulated import Emulated
from sapwood.driver.layers import Checked, Faulty, Recorded

PAGE = 1 << 16
ANY = ("earliest", "latest", "random:1", pytest.param("cuda", marks=pytest.mark.gpu))
LAZY = ("latest", pytest.param("cuda", marks=pytest.mark.gpu))
"""Devices on which work can be kept from being done."""

MODES = {
    "powers of two": {},
    "exact": {"pinned_max_round_threshold": 0},
    "registered": {
        "pinned_use_cuda_host_register": True,
        "pinned_num_register_threads": 4,
    },
    "reserve": {"pinned_reserve_segment_size": 8 << 20},
}


class Rig:
    """A device behind layers, with allocators that are closed at the end."""

    def __init__(self, kind):
        below = Cuda() if kind == "cuda" else Emulated(64 * PAGE, PAGE, kind)
        self.below = below
        self.checked = Checked(below)
        self.faulty = Faulty(self.checked)
        self.driver = Recorded(self.faulty)
        self._allocators, self._back = [], []

    def allocator(self, **settings):
        made = PinnedAllocator(self.driver, Settings(**settings))
        self._allocators.append(made)
        return made

    def stream(self):
        stream = self.driver.create_stream()
        self._back.append((self.driver.destroy_stream, stream))
        return stream

    def device_memory(self):
        """Return a page of device memory."""
        page = self.driver.abilities.page
        address = self.driver.reserve(page)
        extent = self.driver.create(page)
        self.driver.map(address, extent)
        self.driver.release(extent)
        self.driver.set_access(address, page, Access.READ_WRITE)
        self._back += [
            (self.driver.unreserve, address, page),
            (self.driver.unmap, address, page),
        ]
        return address

    def upload(self, allocator, dst, address, size, stream):
        """Give a stream a copy out of pinned memory, and say so."""
        self.driver.copy(dst, address, size, stream)
        allocator.record_use(address, stream)

    @contextmanager
    def held_up(self, *streams):
        """Within it, work given to the streams is not done."""
        go = threading.Event()
        if self.driver.abilities.kind == "cuda":
            for stream in streams:
                self.driver.call_host(lambda: go.wait(60), stream)
        try:
            yield
        finally:
            go.set()

    def finish(self):
        self.faulty.plan = ()
        self.driver.synchronize()
        for each in self._allocators:
            for address in list(each._stock.live):  # what a test holds goes with it
                each.free(address)
            each.close()
        for give_back, *args in reversed(self._back):
            give_back(*args)
        assert self.checked.leaks() == {}
        assert not any(self.below.live_handles().values())

    def abandon(self):
        self.below.close()


@contextmanager
def opened(kind="latest"):
    """Open a rig; nothing of it may be left at the end."""
    rig = Rig(kind)
    try:
        yield rig
        rig.finish()
    finally:
        rig.abandon()


@pytest.fixture(params=ANY)
def rig(request):
    """Return a rig with any device."""
    with opened(request.param) as rig:
        yield rig


@pytest.fixture(params=LAZY)
def lazy(request):
    """Return a rig with a device whose work waits for somebody."""
    with opened(request.param) as rig:
        yield rig


@pytest.fixture(scope="session")
def open_rig():
    """Return what opens rigs for properties, which need one per example."""
    return opened


@pytest.fixture(params=MODES)
def mode(request):
    """Return the settings of one way to allocate."""
    return MODES[request.param]


@pytest.fixture(scope="session")
def write():
    """Return what fills host memory with one byte."""
    return ctypes.memset


@pytest.fixture(scope="session")
def read():
    """Return what reads host memory."""
    return ctypes.string_at
