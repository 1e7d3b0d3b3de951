"""Reservations, extents, mappings and access."""

from __future__ import annotations

import pytest

from sapwood.driver.api import Access
from sapwood.driver.emulated import POISON, Emulated
from sapwood.errors import DriverError, MisuseError, OutOfMemory


def test_fresh_memory_is_poisoned(lab):
    """Fresh memory reads as the poison byte, also where old memory was given back."""
    stream = lab.stream()
    address = lab.memory()
    assert lab.driver.download(address, lab.page, stream) == bytes([POISON]) * lab.page
    lab.driver.set(address, 0, lab.page, stream)
    lab.driver.synchronize()
    assert lab.driver.download(lab.memory(), 64, stream) == bytes([POISON]) * 64


def test_an_extent_is_the_same_memory_at_all_its_addresses(lab):
    """What is written through one mapping is read through another."""
    driver, page, stream = lab.driver, lab.page, lab.stream()
    base = driver.reserve(2 * page)
    extent = driver.create(page)
    for address in (base, base + page):
        driver.map(address, extent)
    driver.set_access(base, 2 * page, Access.READ_WRITE)
    lab.write(base, [1, 2, 3, 4], stream)
    assert lab.read(base + page, stream) == [1, 2, 3, 4]
    driver.unmap(base, 2 * page)
    driver.release(extent)
    driver.unreserve(base, 2 * page)


def test_memory_keeps_its_contents_while_unmapped(lab):
    """Unmapping and mapping elsewhere moves no bytes."""
    driver, page, stream = lab.driver, lab.page, lab.stream()
    base = driver.reserve(2 * page)
    extent = driver.create(page)
    driver.map(base, extent)
    driver.set_access(base, page, Access.READ_WRITE)
    lab.write(base, [5, 6, 7, 8], stream)
    driver.synchronize()
    driver.unmap(base, page)
    driver.map(base + page, extent)
    driver.release(extent)
    driver.set_access(base + page, page, Access.READ)
    assert lab.read(base + page, stream) == [5, 6, 7, 8]
    driver.unmap(base + page, page)
    driver.unreserve(base, 2 * page)


def test_memory_counts_until_nothing_needs_it(driver):
    """An extent counts until it is released and unmapped everywhere."""
    page, total = driver.abilities.page, driver.memory_info().total
    base = driver.reserve(2 * page)
    extent = driver.create(page)
    for address in (base, base + page):
        driver.map(address, extent)
    for give_back in (
        lambda: driver.release(extent),
        lambda: driver.unmap(base, page),
        lambda: driver.unmap(base + page, page),
    ):
        assert driver.memory_info().free == total - page
        give_back()
    assert driver.memory_info().free == total
    driver.unreserve(base, 2 * page)


def test_more_than_the_device_has_is_out_of_memory(driver):
    """Creating beyond the total says what was asked for and what is free."""
    page, total = driver.abilities.page, driver.memory_info().total
    extent = driver.create(total - page)
    with pytest.raises(OutOfMemory) as caught:
        driver.create(2 * page)
    assert (caught.value.asked, caught.value.free) == (2 * page, page)
    assert isinstance(caught.value, MemoryError)
    driver.release(extent)


def test_two_devices_share_no_addresses(driver):
    """Devices of one process reserve apart, and give back apart."""
    page = driver.abilities.page
    other = Emulated(page, page)
    spans = [(each.reserve(page), each) for each in (driver, other, driver, other)]
    assert len({address for address, _ in spans}) == 4
    for address, device in spans:
        device.unreserve(address, page)
    other.close()


def test_only_whole_pages_can_be_had(driver, refused):
    """Sizes that are no multiples of the page are refused."""
    page = driver.abilities.page
    for call, *args in (
        (driver.reserve, page + 1),
        (driver.reserve, 0),
        (driver.create, page - 1),
        (driver.create, -page),
    ):
        with refused("INVALID_VALUE"):
            call(*args)


def test_mapping_needs_reserved_and_unmapped_addresses(driver, refused):
    """An extent is mapped inside one reservation, where nothing is mapped yet."""
    page = driver.abilities.page
    base = driver.reserve(3 * page)
    extent = driver.create(2 * page)
    for address in (base + 2 * page, base + 4096 * page, base - page, base + 1):
        with refused("INVALID_VALUE"):
            driver.map(address, extent)
    driver.map(base + page, extent)
    for address in (base, base + page):
        with refused("INVALID_VALUE"):
            driver.map(address, extent)
    driver.unmap(base + page, 2 * page)
    driver.release(extent)
    driver.unreserve(base, 3 * page)


def test_a_mapping_may_not_span_reservations(driver, refused):
    """Neighbouring reservations stay two."""
    page = driver.abilities.page
    bases = sorted(driver.reserve(page) for _ in range(2))
    extent = driver.create(2 * page)
    with refused("INVALID_VALUE"):
        driver.map(bases[0], extent)
    driver.release(extent)
    for address in bases:
        driver.unreserve(address, page)


def test_only_whole_mappings_can_be_unmapped_or_opened(driver, refused):
    """Parts of a mapping, and intervals with holes, are refused."""
    page = driver.abilities.page
    base = driver.reserve(4 * page)
    extents = [driver.create(2 * page), driver.create(page)]
    driver.map(base, extents[0])
    driver.map(base + 3 * page, extents[1])
    for address, size in (
        (base, page),
        (base + page, page),
        (base, 4 * page),
        (base + 2 * page, page),
        (base, 0),
    ):
        with refused("INVALID_VALUE"):
            driver.unmap(address, size)
        with refused("INVALID_VALUE"):
            driver.set_access(address, size, Access.READ)
    driver.unmap(base, 2 * page)
    driver.unmap(base + 3 * page, page)
    for extent in extents:
        driver.release(extent)
    driver.unreserve(base, 4 * page)


def test_reservations_are_given_back_whole_and_empty(driver, refused):
    """A part of a reservation, or one with memory in it, is refused."""
    page = driver.abilities.page
    base = driver.reserve(2 * page)
    extent = driver.create(page)
    driver.map(base + page, extent)
    for address, size in ((base, page), (base + page, page), (base, 2 * page)):
        with refused("INVALID_VALUE"):
            driver.unreserve(address, size)
    driver.unmap(base + page, page)
    driver.release(extent)
    driver.unreserve(base, 2 * page)
    with refused("INVALID_VALUE"):
        driver.unreserve(base, 2 * page)


def test_a_released_extent_cannot_be_used(driver, refused):
    """Releasing twice and mapping after the release are refused."""
    page = driver.abilities.page
    base = driver.reserve(page)
    extent = driver.create(page)
    driver.release(extent)
    with refused("INVALID_HANDLE"):
        driver.release(extent)
    with refused("INVALID_HANDLE"):
        driver.map(base, extent)
    driver.unreserve(base, page)


@pytest.mark.parametrize("access", [None, Access.NONE, Access.READ])
def test_access_is_needed_and_checked(lab, refused, access):
    """Work on memory without the access it needs fails, and never the process."""
    driver, page, stream = lab.driver, lab.page, lab.stream()
    base = driver.reserve(page)
    extent = driver.create(page)
    driver.map(base, extent)
    if access is not None:
        driver.set_access(base, page, access)
    if access is Access.READ:
        assert lab.read(base, stream) == [-1] * 4
    driver.set(base, 0, 8, stream)
    with refused("ILLEGAL_ADDRESS"):
        driver.synchronize_stream(stream)
    driver.unmap(base, page)
    driver.release(extent)
    driver.unreserve(base, page)


def test_work_may_not_leave_its_memory(lab, refused):
    """Kernels, copies, sets and transfers of one byte too many are illegal."""
    driver, page, address = lab.driver, lab.page, lab.memory()
    end = address + page
    for work in (
        lambda s: lab.launch(s, "add", end - 24, address),
        lambda s: lab.launch(s, "add", address, end - 24),
        lambda s: driver.copy(end - 8, address, 9, s),
        lambda s: driver.copy(address, end - 8, 9, s),
        lambda s: driver.set(end - 8, 1, 9, s),
        lambda s: driver.set(address - 1, 1, 2, s),
        lambda s: lab.write(end - 8, [1, 2], s),
        lambda s: driver.set(4096, 1, 1, s),
    ):
        stream = lab.stream()
        work(stream)
        with refused("ILLEGAL_ADDRESS"):
            driver.synchronize_stream(stream)
    stream = lab.stream()
    with refused("ILLEGAL_ADDRESS"):
        driver.download(end - 8, 9, stream)
    assert lab.read(end - 8, lab.stream(), 1) == [-1]


def test_work_may_span_mappings(lab):
    """Memory made of several extents is one interval to work on."""
    driver, page, stream = lab.driver, lab.page, lab.stream()
    base = driver.reserve(2 * page)
    for address in (base, base + page):
        extent = driver.create(page)
        driver.map(address, extent)
        driver.release(extent)
    driver.set_access(base, 2 * page, Access.READ_WRITE)
    lab.write(base + page - 16, [1, 2, 3, 4], stream)
    lab.launch(stream, "add", base, base + page - 16, 1)
    assert lab.read(base, stream) == [2, 3, 4, 5]
    driver.unmap(base, 2 * page)
    driver.unreserve(base, 2 * page)


def test_host_memory_can_be_copied_to_and_from(lab, refused):
    """Blocks of host memory are addresses for copies until they are freed."""
    driver, stream, address = lab.driver, lab.stream(), lab.memory()
    host = driver.allocate_host(100)
    lab.write(host, [1, 2, 3, 4], stream)
    driver.copy(address, host, 32, stream)
    assert lab.read(address, stream) == [1, 2, 3, 4]
    driver.copy(host + 80, address, 21, stream)
    with refused("ILLEGAL_ADDRESS"):
        driver.synchronize_stream(stream)
    driver.free_host(host)
    with refused("INVALID_VALUE"):
        driver.free_host(host)
    with refused("INVALID_VALUE"):
        driver.allocate_host(0)


def test_the_limit_of_mappings_is_named(device, monkeypatch):
    """Where Linux allows no more mappings, the error says which limit that is."""
    page = device.abilities.page
    base = device.reserve(4 * page)
    extent = device.create(page)
    monkeypatch.setattr(device._memory, "_most", 2)
    device.map(base, extent)
    with pytest.raises(DriverError, match="max_map_count") as caught:
        device.map(base + page, extent)
    assert caught.value.name == "OUT_OF_MEMORY"
    device.unmap(base, page)


def test_a_page_must_be_mappable():
    """A page that the machine cannot map is refused with what it could be."""
    with pytest.raises(MisuseError, match="multiple of 4096"):
        Emulated(page=100)


def test_addresses_given_back_are_reused_last(driver):
    """The next reservation lies elsewhere, so that use after that shows."""
    page = driver.abilities.page
    seen = set()
    for _ in range(8):
        address = driver.reserve(page)
        driver.unreserve(address, page)
        seen.add(address)
    assert len(seen) == 8
