"""Blocks lent to other libraries: raw streams, finalisers, threads, dead streams."""

from __future__ import annotations

import threading
from itertools import count

import pytest

from sapwood import DriverError, MisuseError
from sapwood.allocator.lending import Lender
from sapwood.driver.emulated import Emulated
from tests.support.threads import in_threads


class Blocks:
    """An allocator that reuses no address, and bears only `free` inside a call."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.live: dict[int, int] = {}
        self.inside = False
        self.during = lambda: None
        self._addresses = count(1 << 40, 1 << 20)

    def _call(self, *call) -> None:
        assert not self.inside
        self.inside = True
        self.during()
        self.calls.append(call)
        self.inside = False

    def malloc(self, size, stream):
        self._call("malloc", size, stream)
        if not size:
            return 0
        address = next(self._addresses)
        self.live[address] = stream
        return address

    def free(self, address):
        self.calls.append(("free", address))
        del self.live[address]

    def record_stream(self, address, stream):
        assert address in self.live
        self._call("record", address, stream)

    def empty_cache(self):
        self._call("empty")

    def forget_stream(self, stream, successor):
        self._call("forget", stream, successor)


@pytest.fixture
def driver():
    """A device whose streams run only when somebody waits."""
    driver = Emulated(schedule="latest")
    yield driver
    assert driver.live_handles()["streams"] == 0
    driver.close()


@pytest.fixture
def blocks():
    return Blocks()


@pytest.fixture
def raw(driver):
    """A stream of another library."""
    raw = driver.open_foreign_stream()
    yield raw
    driver.close_foreign_stream(raw)


@pytest.fixture
def lender(driver, blocks, raw):
    """A lender that is closed before the stream is, as it asks for."""
    del raw
    lender = Lender(blocks, driver)
    yield lender
    lender.close()


def names(blocks) -> list[str]:
    return [call[0] for call in blocks.calls]


def test_one_raw_stream_is_one_stream(driver, blocks, lender, raw):
    """Requests that name the same raw stream share what the allocator caches for it."""
    first, second = lender.lend(10, raw), lender.lend(20, raw)
    other = lender.lend(30, 0)
    streams = [call[2] for call in blocks.calls]
    assert streams[0] == streams[1] != streams[2]
    assert driver.raw_stream(streams[0]) == raw
    for address in (first, second, other):
        lender.take_back(address)


def test_what_comes_back_is_free(blocks, lender):
    """On its own stream, or on none, at once: that is all a finaliser may do."""
    for stream in (None, 0):
        address = lender.lend(10, 0)
        lender.take_back(address, stream)
        assert address not in blocks.live
    assert names(blocks) == ["malloc", "free"] * 2
    assert lender.lent() == 0


def test_what_comes_back_elsewhere_waits_for_the_next_request(blocks, lender, raw):
    """A finaliser says no more: the next request does, before it asks."""
    address = lender.lend(10, 0)
    lender.take_back(address, raw)
    assert names(blocks) == ["malloc"]
    assert lender.lent() == 0
    lender.take_back(lender.lend(10, 0))
    assert names(blocks) == ["malloc", "record", "free", "malloc", "free"]


def test_a_finaliser_may_run_inside_the_allocator(blocks, lender, raw):
    """Garbage may be collected while the allocator is at work, on the same thread."""
    held = [lender.lend(10, 0) for _ in range(3)]
    blocks.during = lambda: (
        held and lender.take_back(held.pop(), (0, raw)[len(held) % 2])
    )
    for _ in range(4):
        lender.take_back(lender.lend(10, 0))
    blocks.during = lambda: None
    lender.drain()
    assert held == []
    assert blocks.live == {}


def test_another_stream_is_recorded_before_the_block_is_freed(blocks, lender, raw):
    """Work on the stream it came back on may still be using it; on its own is known."""
    address = lender.lend(10, 0)
    lender.take_back(address, raw)
    lender.drain()
    assert names(blocks) == ["malloc", "record", "free"]
    assert blocks.calls[1][2] != blocks.calls[0][2]
    lender.take_back(lender.lend(10, raw), raw)
    lender.drain()
    assert names(blocks)[3:] == ["malloc", "free"]


def test_a_stream_that_died_meanwhile_is_waited_for(driver, blocks, lender):
    """No event can be recorded on it any more: then all work of the device is over."""
    dead = driver.open_foreign_stream()
    driver.close_foreign_stream(dead)
    ran = []
    own = driver.create_stream()
    driver.call_host(lambda: ran.append(True), own)
    lender.take_back(lender.lend(10, 0), dead)
    lender.drain()
    assert ran == [True]
    assert names(blocks) == ["malloc", "free"]
    driver.destroy_stream(own)


def test_no_bytes_are_nowhere(blocks, lender):
    """Zero bytes are lent at address 0, which may come back any number of times."""
    assert lender.lend(0, 0) == 0
    lender.take_back(0)
    lender.take_back(0, 0)
    assert lender.lent() == 0
    assert names(blocks) == ["malloc"]


def test_an_address_comes_back_once(lender):
    """What was never lent, or is back already, is refused by its address."""
    address = lender.lend(10, 0)
    for wrong in (address + 1, 0xDEAD):
        with pytest.raises(MisuseError, match="is not lent: give each address back"):
            lender.take_back(wrong)
    lender.take_back(address)
    with pytest.raises(MisuseError, match="once"):
        lender.take_back(address)


def test_a_threads_own_stream_is_another_for_each(blocks, lender):
    """The per-thread default stream has one name and means many streams."""
    seen = []

    def ask() -> None:
        address = lender.lend(10, 2)
        seen.append(blocks.live[address])
        lender.take_back(address)

    ask()
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert len(set(seen)) == 2


def test_a_stream_is_forgotten_in_order(driver, blocks, lender):
    """Its successor waits for its work, then has its cache; its handle is gone."""
    leaving = driver.open_foreign_stream()
    address = lender.lend(10, leaving)
    ran = []
    driver.call_host(lambda: ran.append("its"), blocks.live[address])
    lender.take_back(address)
    lender.forget_stream(leaving)
    verb, _, successor = blocks.calls[-1]
    assert (verb, blocks.live) == ("forget", {})
    driver.call_host(lambda: ran.append("the successor's"), successor)
    driver.synchronize_stream(successor)
    assert ran == ["its", "the successor's"]
    driver.close_foreign_stream(leaving)
    lender.forget_stream(leaving)
    assert names(blocks)[-1] == "forget"
    assert names(blocks).count("forget") == 1


def test_an_allocator_that_fails_lends_nothing(blocks, lender):
    """Its error is the caller's, and the lender as it was."""

    def fail() -> None:
        blocks.inside = False
        raise DriverError("create", 1, "X", "why")

    blocks.during = fail
    with pytest.raises(DriverError):
        lender.lend(10, 0)
    blocks.during = lambda: None
    assert lender.lent() == 0
    lender.take_back(lender.lend(10, 0))


def test_a_lender_with_debtors_is_not_closed(driver, blocks):
    """What is lent would be freed under its users."""
    lender = Lender(blocks, driver)
    address = lender.lend(10, 0)
    with pytest.raises(MisuseError, match="1 addresses are still lent"):
        lender.close()
    assert address in blocks.live
    lender.take_back(address)
    lender.close()
    assert names(blocks) == ["malloc", "free", "empty"]
    assert driver.live_handles()["streams"] == 0


def test_threads_lose_nothing(driver):
    """Addresses lent on one thread and given back on another are all freed, once."""
    blocks, lock = Blocks(), threading.Lock()

    class Locked(Blocks):
        def _call(self, *call) -> None:
            with lock:
                super()._call(*call)

    blocks = Locked()
    lender, handed = Lender(blocks, driver), []

    def work() -> None:
        for _ in range(500):
            handed.append(lender.lend(10, 0))
            if len(handed) > 8:
                lender.take_back(handed.pop())

    in_threads(*[work] * 4)
    for address in handed:
        lender.take_back(address)
    lender.close()
    assert blocks.live == {}
    assert names(blocks).count("free") == names(blocks).count("malloc") == 2000
