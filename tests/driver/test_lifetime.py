"""Handles, the end of a device, and processes that fork."""

from __future__ import annotations

import os
import resource
import warnings
from pathlib import Path

import pytest

from sapwood.driver.api import Access
from sapwood.driver.emulated import Emulated
from sapwood.errors import DriverError, OutOfMemory


def test_handles_are_given_back_once(driver, refused):
    """A handle that was given back is unknown to all calls."""
    stream, event, graph = (
        driver.create_stream(),
        driver.create_event(),
        driver.create_graph(),
    )
    for call, handle in (
        (driver.destroy_stream, stream),
        (driver.destroy_event, event),
        (driver.destroy_graph, graph),
    ):
        call(handle)
        with refused("INVALID_HANDLE"):
            call(handle)
    for call, *args in (
        (driver.synchronize_stream, stream),
        (driver.set, 0, 0, 0, stream),
        (driver.query_event, event),
        (driver.instantiate, graph),
    ):
        with refused("INVALID_HANDLE"):
            call(*args)


def test_handles_of_one_kind_are_not_those_of_another(driver, refused):
    """An event is no stream."""
    event = driver.create_event()
    with refused("INVALID_HANDLE"):
        driver.destroy_stream(event)
    driver.destroy_event(event)


def test_a_closed_device_refuses_all(device, refused):
    """After closing, calls say that the device was closed; closing again is fine."""
    stream = device.create_stream()
    device.close()
    device.close()
    for call in (
        device.create_stream,
        device.synchronize,
        lambda: device.synchronize_stream(stream),
        device.memory_info,
    ):
        with refused("DEINITIALIZED"):
            call()


def test_closing_gives_everything_back_to_the_system():
    """Files and addresses of a closed device are gone, whatever was left in it."""
    device = Emulated(1 << 22, 1 << 16)
    file = os.fstat(device._memory.physical.file)

    def held():
        of_any = [
            line.split()
            for line in Path("/proc/self/maps").read_text().splitlines()
            if "sapwood-emulated" in line
        ]
        files = [each for each in Path("/proc/self/fd").iterdir() if each.exists()]
        return (
            sum(str(file.st_ino) in words for words in of_any),
            sum(os.path.samestat(each.stat(), file) for each in files),
        )

    base = device.reserve(1 << 20)
    device.map(base, device.create(1 << 16))
    device.set_access(base, 1 << 16, Access.READ_WRITE)
    device.allocate_host(100)
    assert held() == (1, 1)
    device.close()
    assert held() == (0, 0)


def test_memory_given_back_is_free_for_the_system():
    """Released extents cost no memory while the device lives on."""
    device = Emulated(1 << 30, 1 << 16)
    for _ in range(8):
        device.release(device.create(1 << 22))
    blocks = os.fstat(device._memory.physical.file).st_blocks
    assert blocks * 512 < 1 << 20
    device.close()


def test_too_few_files_are_named():
    """Where no file can be opened, the error names the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(DriverError, match="RLIMIT_NOFILE") as caught:
            Emulated()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.name == "OUT_OF_MEMORY"


def test_a_forked_child_may_not_use_the_device(device):
    """The child is told so, may open a device of its own, and the parent goes on."""
    stream = device.create_stream()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests' threads
        child = os.fork()
    if not child:
        status = 1
        try:
            device.synchronize_stream(stream)
        except DriverError as error:
            own = Emulated(1 << 22, 1 << 16)
            own.unreserve(own.reserve(1 << 16), 1 << 16)
            status = 0 if "forked" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    device.synchronize_stream(stream)


def test_a_system_without_memory_is_out_of_memory(device):
    """Where the system gives no memory, nothing is created and nothing counted."""
    extent = device.create(1 << 16)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(OutOfMemory):
            device.create(1 << 16)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert device.live_handles()["extents"] == 1
    device.release(extent)
    assert device.memory_info().free == device.memory_info().total


def test_a_system_without_addresses_says_so(device, refused):
    """Where Linux refuses a mapping, the error says what limits there are."""
    extent, base = device.create(1 << 16), device.reserve(1 << 16)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 16, hard))
    try:
        with refused("OUT_OF_MEMORY"):
            device.reserve(1 << 40)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    device.map(base, extent)
    assert device.live_handles()["reservations"] == 1
