"""The layers: they are drivers, and do what they are for."""

from __future__ import annotations

import inspect

import pytest

from sapwood.driver.api import Access, CaptureStatus, Driver
from sapwood.driver.emulated import Emulated
from sapwood.driver.layers import Checked, Faulty, Layer, Recorded
from sapwood.errors import DriverError, MisuseError, OutOfMemory

CALLS = sorted(
    name for name in dir(Driver) if inspect.isfunction(getattr(Driver, name))
)
CALLS = [name for name in CALLS if not name.startswith("_")]


@pytest.fixture(params=["earliest", "latest", "random:4"])
def below(request):
    """Return a device to wrap; nothing of it may be left at the end."""
    device = Emulated(1 << 22, 1 << 16, request.param)
    yield device
    assert not any(device.live_handles().values()), device.live_handles()
    device.close()


def _use(driver):
    """Make most calls of a driver, and give everything back."""
    page, stream = driver.abilities.page, driver.create_stream()
    base = driver.reserve(2 * page)
    extent = driver.create(page)
    driver.map(base, extent)
    driver.set_access(base, page, Access.READ_WRITE)
    driver.begin_capture(stream)
    driver.set(base, 1, 8, stream)
    graph = driver.end_capture(stream)
    exec_ = driver.instantiate(graph)
    driver.destroy_graph(graph)
    driver.launch_graph(exec_, stream)
    data = driver.download(base, 8, stream)
    driver.destroy_exec(exec_)
    driver.unmap(base, page)
    driver.release(extent)
    driver.unreserve(base, 2 * page)
    driver.destroy_stream(stream)
    return data


def test_layers_pass_every_call_on():
    """A layer has every call of the Protocol, with the same parameters."""
    for name in CALLS:
        passed = inspect.signature(getattr(Layer, name))
        assert passed == inspect.signature(getattr(Driver, name)), name
    assert isinstance(Layer.abilities, property)


def test_layers_change_no_results(below):
    """A stack of all layers behaves as the driver below it."""
    assert _use(Checked(Recorded(Faulty(below)))) == _use(below) == b"\x01" * 8


def test_calls_are_counted_and_kept(below):
    """Counts are by name; arguments are kept, in their positions, if asked for."""
    driver = Recorded(below, keep=True)
    page = driver.abilities.page
    base = driver.reserve(size=page)
    driver.unreserve(base, size=page)
    with pytest.raises(DriverError):
        driver.unreserve(base, page)
    assert driver.counts() == {"reserve": 1, "unreserve": 2}
    assert driver.calls == [
        ("reserve", (page,)),
        ("unreserve", (base, page)),
        ("unreserve", (base, page)),
    ]
    driver.reset()
    assert driver.counts() == {}
    assert driver.calls == []
    driver.synchronize()
    assert driver.counts() == {"synchronize": 1}
    assert driver.ever == {"reserve": 1, "unreserve": 2, "synchronize": 1}


def test_arguments_are_not_kept_unasked(below):
    """Without ``keep`` a layer that counts grows no list."""
    driver = Recorded(below)
    driver.synchronize()
    assert driver.calls == []
    assert driver.counts() == {"synchronize": 1}


def test_the_planned_call_fails_and_no_other(below):
    """Each position fails exactly the call that is made there."""
    recorded = Recorded(below, keep=True)
    _use(recorded)
    names = [name for name, _ in recorded.calls]
    for position, name in enumerate(names):
        device = Emulated(1 << 22, 1 << 16)
        driver = Faulty(device, {position})
        with pytest.raises(DriverError) as caught:
            _use(driver)
        assert caught.value.call == driver.fired == name
        assert driver.position == position + 1
        device.close()
    driver = Faulty(below, {len(names)})
    _use(driver)
    assert driver.fired is None
    assert driver.position == len(names)


def test_what_gives_back_is_done_when_it_fails(below):
    """Release-type calls are performed, then reported failed."""
    driver = Faulty(below)
    page = driver.abilities.page
    base, extent = driver.reserve(page), driver.create(page)
    driver.map(base, extent)
    driver.plan = range(driver.position, 100)
    for call, *args in (
        (driver.unmap, base, page),
        (driver.release, extent),
        (driver.unreserve, base, page),
    ):
        with pytest.raises(DriverError, match="on purpose"):
            call(*args)
    assert not any(below.live_handles().values())


def test_other_calls_fail_before_they_do_anything(below):
    """A failed create takes no memory and says that there is none."""
    driver = Faulty(below, range(100))
    with pytest.raises(OutOfMemory) as caught:
        driver.create(below.abilities.page)
    assert caught.value.asked == below.abilities.page
    with pytest.raises(DriverError):
        driver.reserve(below.abilities.page)
    assert not any(below.live_handles().values())


def test_a_failed_end_ends_the_capture(below):
    """The capture is over and gives no graph."""
    driver = Faulty(below)
    stream = driver.create_stream()
    driver.begin_capture(stream)
    driver.plan = {driver.position}
    with pytest.raises(DriverError):
        driver.end_capture(stream)
    assert driver.capture_status(stream) is CaptureStatus.NONE
    driver.destroy_stream(stream)


def test_leaks_are_counted_by_kind(below):
    """What was not given back is named; nothing is, when all was."""
    driver = Checked(below)
    page = driver.abilities.page
    assert driver.leaks() == {}
    base, extent, stream = (
        driver.reserve(page),
        driver.create(page),
        driver.create_stream(),
    )
    driver.map(base, extent)
    block = driver.allocate_host(8)
    assert driver.leaks() == {
        "extent": 1,
        "host": 1,
        "mapping": 1,
        "reservation": 1,
        "stream": 1,
    }
    driver.free_host(block)
    driver.unmap(base, page)
    driver.release(extent)
    driver.unreserve(base, page)
    driver.destroy_stream(stream)
    assert driver.leaks() == {}


class _Careless(Layer):
    """A driver that lets everything pass and does nothing."""

    def around(self, name, _call, _args):
        return 1 if name in {"create", "create_stream", "create_graph"} else None


def test_wrong_use_does_not_reach_the_driver(below, refused):
    """The account is the layer's own: it catches what the driver lets pass."""
    driver = Checked(_Careless(below))
    page = driver.abilities.page
    extent, stream = driver.create(page), driver.create_stream()
    for name, call, *args in (
        ("INVALID_HANDLE", driver.launch_graph, 7, stream),
        ("INVALID_HANDLE", driver.synchronize_stream, 8),
        ("INVALID_HANDLE", driver.release, 9),
        ("INVALID_VALUE", driver.map, page, extent),
        ("INVALID_VALUE", driver.unmap, page, page),
        ("INVALID_VALUE", driver.set_access, page, page, Access.READ),
        ("INVALID_VALUE", driver.unreserve, page, page),
        ("INVALID_VALUE", driver.free_host, page),
    ):
        with refused(name):
            call(*args)
    driver.release(extent)
    with refused("INVALID_HANDLE"):
        driver.release(extent)


def test_mapped_memory_may_not_be_given_back(below, refused):
    """The account knows which reservations and addresses are in use."""
    driver = Checked(below)
    page = driver.abilities.page
    base, extent = driver.reserve(2 * page), driver.create(page)
    driver.map(base + page, extent)
    with refused("INVALID_VALUE"):
        driver.unreserve(base, 2 * page)
    with refused("INVALID_VALUE"):
        driver.map(base + page, extent)
    driver.unmap(base + page, page)
    driver.release(extent)
    driver.unreserve(base, 2 * page)


def test_poison_fills_what_may_be_written(below):
    """Only mapped and writable parts of the ranges change."""
    driver, page = Checked(below), below.abilities.page
    stream, base = driver.create_stream(), driver.reserve(4 * page)
    for number in (0, 2):
        extent = driver.create(page)
        driver.map(base + number * page, extent)
        driver.release(extent)
        driver.set_access(base + number * page, page, Access.READ_WRITE)
        driver.set(base + number * page, 0, page, stream)
    driver.synchronize()
    driver.set_access(base + 2 * page, page, Access.READ)
    driver.poison([(base + 8, 4 * page - 8)], 0xAB)
    assert driver.download(base, 16, stream) == bytes(8) + b"\xab" * 8
    assert driver.download(base + 2 * page, 8, stream) == bytes(8)
    driver.begin_capture(stream)
    with pytest.raises(MisuseError, match="capturing"):
        driver.poison([(base, page)])
    driver.destroy_graph(driver.end_capture(stream))
    driver.unmap(base, page)
    driver.unmap(base + 2 * page, page)
    driver.unreserve(base, 4 * page)
    driver.destroy_stream(stream)
    assert driver.leaks() == {}


def test_the_account_follows_what_was_done(below):
    """A release that is done and reported failed is no leak."""
    faulty = Faulty(below)
    driver = Checked(faulty)
    page, stream = driver.abilities.page, driver.create_stream()
    base, extent = driver.reserve(page), driver.create(page)
    driver.map(base, extent)
    faulty.plan = range(100)
    for call, *args in (
        (driver.unmap, base, page),
        (driver.release, extent),
        (driver.unreserve, base, page),
        (driver.destroy_stream, stream),
    ):
        with pytest.raises(DriverError, match="on purpose"):
            call(*args)
    assert driver.leaks() == {}
