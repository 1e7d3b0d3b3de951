"""Memory of the process that a device may be let at."""

from __future__ import annotations

import ctypes
import mmap

import pytest

from sapwood.driver.layers import Checked, Faulty
from sapwood.errors import DriverError


@pytest.fixture
def own():
    """Return the process's own memory: where it is, and how to look at it."""
    block = mmap.mmap(-1, 4 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE)
    view = ctypes.c_char.from_buffer(block)
    yield ctypes.addressof(view), block
    del view
    block.close()


def test_registered_memory_can_be_copied_to_and_from(lab, own):
    """B test_cudart_register: from the call until it is undone; what is in it stays."""
    (address, block), stream, device = own, lab.stream(), lab.memory()
    block[:4] = b"abcd"
    lab.driver.register_host(address, len(block))
    lab.driver.copy(device, address, 4, stream)
    lab.driver.copy(address + len(block) - 4, device, 4, stream)
    lab.driver.synchronize_stream(stream)
    lab.driver.unregister_host(address)
    assert block[:4] == block[-4:] == b"abcd"


def test_what_is_not_registered_is_not_reached(device, own, refused):
    """B test_cudart_register: neither before, nor after, nor beyond its end."""
    address, block = own

    def copy(to):
        stream = device.create_stream()
        try:
            device.copy(to, address, 8, stream)
            device.synchronize_stream(stream)
        finally:
            device.destroy_stream(stream)

    with refused("ILLEGAL_ADDRESS"):
        copy(address + 8)
    device.register_host(address, 64)
    copy(address + 8)
    with refused("ILLEGAL_ADDRESS"):
        copy(address + 60)
    device.unregister_host(address)
    with refused("ILLEGAL_ADDRESS"):
        copy(address + 8)
    assert block[:8] == block[8:16]


def test_memory_is_registered_once(driver, own, refused):
    """Twice is refused, as is what was never registered."""
    address, block = own
    driver.register_host(address, len(block))
    with refused("HOST_MEMORY_ALREADY_REGISTERED"):
        driver.register_host(address + mmap.PAGESIZE, mmap.PAGESIZE)
    driver.unregister_host(address)
    with refused("HOST_MEMORY_NOT_REGISTERED"):
        driver.unregister_host(address)


def test_only_what_the_process_has_can_be_registered(driver, own, refused):
    """Nothing, and addresses with nothing behind them, are refused."""
    address, _ = own
    with refused("INVALID_VALUE"):
        driver.register_host(address, 0)
    with refused("INVALID_VALUE"):
        driver.register_host(0x1000, mmap.PAGESIZE)


def test_registered_memory_is_not_freed(driver, own, refused):
    """It is its owner's: the device only ends what it began."""
    address, _ = own
    driver.register_host(address, mmap.PAGESIZE)
    with refused("INVALID_VALUE"):
        driver.free_host(address)
    driver.unregister_host(address)
    block = driver.allocate_host(64)
    with refused("HOST_MEMORY_NOT_REGISTERED"):
        driver.unregister_host(block)
    driver.free_host(block)


def test_closing_leaves_registered_memory_alone(device, own):
    """The process may still use it."""
    address, block = own
    device.register_host(address, len(block))
    device.close()
    block[:1] = b"x"
    assert block[:1] == b"x"


def test_layers_keep_account_of_it(device, own, refused):
    """Overlaps and leaks are noticed, and undoing is done even when it fails."""
    address, block = own
    faulty = Faulty(device)
    driver = Checked(faulty)
    driver.register_host(address, len(block))
    assert driver.leaks() == {"registered": 1}
    with refused("INVALID_VALUE"):
        driver.register_host(address + 8, 8)
    with refused("INVALID_VALUE"):
        driver.unregister_host(address + 8)
    faulty.plan = {faulty.position}
    with pytest.raises(DriverError, match="on purpose"):
        driver.unregister_host(address)
    assert driver.leaks() == {}
    assert device.live_handles()["registered"] == 0
