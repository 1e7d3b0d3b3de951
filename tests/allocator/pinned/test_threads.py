"""Several threads, finalisers, and the thread that looks after copies."""

from __future__ import annotations

import gc
import threading
import time
from functools import partial

import pytest

from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.pinned import PinnedAllocator
from sapwood.allocator.pinned.worker import Worker
from sapwood.driver.emulated import Emulated
from sapwood.errors import DriverError, MisuseError
from tests.support.threads import in_threads

SIZE = 4096
LONG = 30.0  # seconds: only where something is broken


def _together(work, number):
    in_threads(*(partial(work, each) for each in range(number)))


def _until(happened):
    end = time.monotonic() + LONG
    while not happened():
        assert time.monotonic() < end
        time.sleep(1e-3)


def test_threads_share_an_allocator(rig, mode, write, read):
    """No two of them hold a byte in common, and the counters agree at the end."""
    allocator, wrong = rig.allocator(**mode), []
    device, streams = rig.device_memory(), [rig.stream() for _ in range(4)]

    def drop(number, address, size):
        if read(address, size) != bytes([number]) * size:
            wrong.append(address)
        allocator.free(address)

    def work(number):
        held = []
        for step in range(60):
            size = 512 + 700 * ((7 * step + number) % 5)
            held.append((allocator.malloc(size), size))
            write(held[-1][0], number, size)
            if step % 3 == 0:
                rig.upload(allocator, device, held[-1][0], 8, streams[number])
            if len(held) > 4:
                drop(number, *held.pop(step % 5))
        for each in held:
            drop(number, *each)

    _together(work, 4)
    assert wrong == []
    assert allocator.memory_stats()["active_requests.allocated"] == 240
    allocator.close()
    assert allocator.memory_stats()["active_requests.current"] == 0


def test_a_block_may_be_freed_inside_the_lock(rig):
    """As finalisers do that run anywhere: it is taken in by whoever has the lock."""
    allocator = rig.allocator()
    first, second = allocator.malloc(SIZE), allocator.malloc(SIZE)
    with allocator._intake.lock:
        allocator.free(first)
    assert allocator.memory_stats()["active_requests.current"] == 2
    allocator.free(second)
    assert allocator.memory_stats()["active_requests.current"] == 0


class _Holder:
    """Frees a block when it is garbage, in a cycle with itself."""

    def __init__(self, allocator):
        self.allocator, self.address = allocator, allocator.malloc(SIZE)
        self.itself = self

    def __del__(self):
        self.allocator.free(self.address)


def test_finalisers_free(rig):
    """Collections in the middle of anything do no harm."""
    allocator, threshold = rig.allocator(), gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            _Holder(allocator)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert allocator.memory_stats()["active_requests.allocated"] == 200
    allocator.free(allocator.malloc(SIZE))
    assert allocator.memory_stats()["active_requests.current"] == 0


def test_one_thread_of_several_frees_a_block(rig):
    """The others are told of their mistake."""
    allocator, told = rig.allocator(), []
    address, start = allocator.malloc(SIZE), threading.Barrier(4)

    def free(_):
        start.wait()
        try:
            allocator.free(address)
        except MisuseError as error:
            told.append(error)

    _together(free, 4)
    assert len(told) == 3


def test_a_background_thread_takes_blocks_in(rig):
    """Without a further call, as soon as their copies are over."""
    allocator = rig.allocator(pinned_use_background_threads=True)
    device, stream = rig.device_memory(), rig.stream()
    address = allocator.malloc(SIZE)
    rig.upload(allocator, device, address, 8, stream)
    allocator.free(address)
    rig.driver.synchronize()
    if rig.driver.abilities.kind == "emulated":
        allocator._intake.wait()  # the latest schedule runs nothing for who asks
    _until(lambda: not allocator.memory_stats()["active_requests.current"])
    allocator.configure(Settings())
    assert not [t for t in threading.enumerate() if t.name == "sapwood-pinned"]


def test_errors_in_the_background_are_reported():
    """And the thread goes on."""
    told = []
    device = Emulated(schedule="latest")
    settings = Settings(pinned_use_background_threads=True)
    allocator = PinnedAllocator(device, settings, report=told.append)
    stream = device.create_stream()
    for round_ in (1, 2):
        address = allocator.malloc(SIZE)
        allocator.record_use(address, stream)
        device.query_event, query = _broken, device.query_event
        allocator.free(address)
        _until(lambda: len(told) == round_)  # noqa: B023 -- called at once
        device.query_event = query
    assert [error.call for error in told] == ["query_event"] * 2
    allocator.close()
    device.destroy_stream(stream)
    assert not any(device.live_handles().values())
    device.close()


def _broken(_event):
    raise DriverError("query_event", 999, "UNKNOWN", "broken on purpose: mend it")


class _Owner:
    """Wants to be looked after so many times."""

    def __init__(self, times):
        self.times, self.seen = times, 0

    def look_after(self):
        self.seen += 1
        return self.seen < self.times


@pytest.mark.parametrize("times", [1, 3])
def test_a_worker_looks_until_there_is_nothing_more(times):
    """From each wake on; and not before the first, nor after its end."""
    owner, worker = _Owner(times), Worker()
    worker.wake()
    worker.stop()
    worker.start(owner)
    worker.start(owner)
    assert owner.seen == 0
    worker.wake()
    _until(lambda: owner.seen >= times)
    worker.stop()
    assert owner.seen == times
    worker.wake()
    assert owner.seen == times


def test_a_worker_ends_with_its_owner():
    """It does not keep it alive."""
    owner, worker = _Owner(1), Worker()
    worker.start(owner)
    worker.wake()
    del owner
    gc.collect()
    _until(lambda: not any(t.name == "sapwood-pinned" for t in threading.enumerate()))


class _Slow(threading.Thread):
    """Takes its time to be made, and to be started."""

    def __init__(self, *args, **kwargs):
        time.sleep(0.02)
        super().__init__(*args, **kwargs)

    def start(self):
        time.sleep(0.02)
        super().start()


def _meanwhile(works, monkeypatch):
    """Do all of this at once, in threads, where a worker is slow to start."""
    wrong = []
    quick = [threading.Thread(target=_told, args=(work, wrong)) for work in works]
    monkeypatch.setattr(threading, "Thread", _Slow)
    for thread in quick:
        thread.start()
        time.sleep(0.005)
    for thread in quick:
        thread.join(LONG)
    assert not any(thread.is_alive() for thread in quick)
    assert wrong == []


def _told(work, wrong):
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whatever it is
        wrong.append(error)


def _workers():
    return [each for each in threading.enumerate() if each.name == "sapwood-pinned"]


def test_several_threads_start_one_worker(monkeypatch):
    """Each of which would be waited for, and only one of them be told to end."""
    owner, worker = _Owner(1), Worker()
    _meanwhile([lambda: worker.start(owner)] * 4, monkeypatch)
    assert len(_workers()) == 1
    worker.stop()
    assert _workers() == []


def test_a_worker_is_ended_while_it_starts(monkeypatch):
    """Nobody waits for a thread that has not begun, and none is left."""
    owner, worker = _Owner(1), Worker()
    _meanwhile([lambda: worker.start(owner)] + [worker.stop] * 8, monkeypatch)
    worker.stop()
    assert _workers() == []


@pytest.mark.parametrize("end", ["close", "configure"])
def test_no_worker_outlives_what_ends_it(end, monkeypatch):
    """Whoever asked for one before, and got it after, ends it again."""
    device = Emulated()
    allocator = PinnedAllocator(device, Settings(pinned_use_background_threads=True))
    stream, address = device.create_stream(), allocator.malloc(SIZE)
    start = allocator._worker.start

    def late(owner):
        allocator.close() if end == "close" else allocator.configure(Settings())
        start(owner)

    monkeypatch.setattr(allocator._worker, "start", late)
    allocator.record_use(address, stream)
    assert _workers() == []
    allocator.free(address)
    allocator.close()
    device.destroy_stream(stream)
    device.close()
