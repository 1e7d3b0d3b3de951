"""Copies that use a block keep it; and what is misuse."""

from __future__ import annotations

import gc
import weakref
from contextlib import ExitStack
from functools import partial

import pytest

from sapwood.allocator.caching.picture import PoolId
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.pinned import PinnedAllocator
from sapwood.errors import DriverError, MisuseError, OutOfMemory

SIZE = 4096
POOL = PoolId(7, 0)


def _active(allocator):
    return allocator.memory_stats()["active_requests.current"]


def test_a_block_waits_for_every_stream_that_used_it(lazy):
    """It is reused when the last copy is over, and counts as active until then."""
    allocator, streams = lazy.allocator(), [lazy.stream() for _ in range(3)]
    device, address = lazy.device_memory(), allocator.malloc(SIZE)
    with ExitStack() as stack:
        held = [stack.enter_context(ExitStack()) for _ in streams]
        for stream, each in zip(streams, held, strict=True):
            each.enter_context(lazy.held_up(stream))
            lazy.upload(allocator, device, address, 8, stream)
        allocator.free(address)
        for stream, each in zip(streams, held, strict=True):
            assert allocator.malloc(SIZE) != address
            each.close()
            lazy.driver.synchronize_stream(stream)
    assert _active(allocator) == 4
    assert allocator.malloc(SIZE) == address
    assert _active(allocator) == 4


def test_streams_do_not_wait_for_each_other(lazy):
    """A copy that is over frees its block, though an earlier one of others is not."""
    allocator, slow, fast = lazy.allocator(), lazy.stream(), lazy.stream()
    device = lazy.device_memory()
    first, second = allocator.malloc(SIZE), allocator.malloc(SIZE)
    with lazy.held_up(slow):
        lazy.upload(allocator, device, first, 8, slow)
        lazy.upload(allocator, device, second, 8, fast)
        allocator.free(first)
        allocator.free(second)
        lazy.driver.synchronize_stream(fast)
        assert allocator.malloc(SIZE) == second
    allocator.free(second)


def test_freeing_and_asking_never_wait(lazy):
    """Neither makes a call that waits; nor does giving back, before CUDA does."""
    allocator, stream = lazy.allocator(), lazy.stream()
    device, address = lazy.device_memory(), allocator.malloc(SIZE)
    lazy.driver.reset()
    with lazy.held_up(stream):
        lazy.upload(allocator, device, address, 8, stream)
        allocator.free(address)
        allocator.free(allocator.malloc(SIZE))
    allocator.empty_cache()
    waits = {"synchronize", "synchronize_stream", "synchronize_event", "download"}
    assert not waits & set(lazy.driver.counts())


def test_a_hit_makes_no_device_call(rig):
    """Nor does freeing what nothing used."""
    allocator = rig.allocator()
    allocator.free(allocator.malloc(SIZE))
    rig.driver.reset()
    allocator.free(allocator.malloc(SIZE))
    assert rig.driver.counts() == {}


def test_events_are_used_again(rig):
    """As many as were pending at once, and no more."""
    allocator, stream = rig.allocator(), rig.stream()
    device = rig.device_memory()
    for _ in range(5):
        address = allocator.malloc(SIZE)
        rig.upload(allocator, device, address, 8, stream)
        allocator.free(address)
        rig.driver.synchronize()
        while allocator.look_after():
            pass
    assert rig.driver.counts()["create_event"] == 1


def test_running_out_waits_for_copies(lazy):
    """Memory that only copies hold is waited for before there is none."""
    allocator, stream = lazy.allocator(), lazy.stream()
    device, address = lazy.device_memory(), allocator.malloc(SIZE)
    lazy.upload(allocator, device, address, 8, stream)
    allocator.free(address)
    lazy.faulty.plan = _Every(lazy, "allocate_host")
    assert allocator.malloc(SIZE) == address
    with pytest.raises(MemoryError, match="4 KiB of it are in use") as caught:
        allocator.malloc(2 * SIZE)
    assert "Free blocks that nobody needs" in str(caught.value)
    assert caught.value.asked == 2 * SIZE
    lazy.faulty.plan = ()
    allocator.free(address)


def test_copies_may_be_over_when_the_system_was_asked(lazy):
    """What they used is handed out then, and not given back to the system first."""
    allocator, stream = lazy.allocator(), lazy.stream()
    device, address = lazy.device_memory(), allocator.malloc(SIZE)
    lazy.upload(allocator, device, address, 8, stream)
    allocator.free(address)
    over = partial(lazy.driver.synchronize_stream, stream)
    lazy.faulty.plan = _Every(lazy, "allocate_host", over)
    assert allocator.malloc(SIZE) == address
    lazy.faulty.plan = ()
    allocator.free(address)


def test_more_than_the_system_has_is_not_blamed_on_blocks(rig):
    """Where none is in use, none is to be freed, and recordings are not named."""
    allocator = rig.allocator()
    rig.faulty.plan = _Every(rig, "allocate_host")
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(1 << 50)
    assert caught.value.holders == ()
    assert str(caught.value).endswith("0 B cached. Ask for less at once")
    rig.faulty.plan = ()


class _Every:
    """A plan that fails each call of one name that comes, and does ``besides``."""

    def __init__(self, rig, name, besides=bool):
        self._rig, self._name, self._seen = rig, name, 0
        self._besides = besides
        rig.driver.reset()

    def __contains__(self, _position):
        before, self._seen = self._seen, self._rig.driver.counts().get(self._name, 0)
        if self._seen > before:
            self._besides()
        return self._seen > before


def test_what_was_used_before_a_capture_waits_for_its_end(lazy):
    """No event is recorded into the capture, which goes on."""
    allocator, stream = lazy.allocator(), lazy.stream()
    device, address = lazy.device_memory(), allocator.malloc(SIZE)
    lazy.upload(allocator, device, address, 8, stream)
    lazy.driver.begin_capture(stream)
    allocator.free(address)
    assert allocator.look_after()
    other = allocator.malloc(SIZE)
    assert other != address
    lazy.driver.destroy_graph(lazy.driver.end_capture(stream))
    allocator.look_after()
    lazy.driver.synchronize()
    assert allocator.malloc(SIZE) == address
    allocator.free(address)
    allocator.free(other)


def test_what_is_recorded_by_nobody_in_particular_is_kept(rig):
    """A block used in a capture with no pool is not reused before the end."""
    allocator, stream = rig.allocator(), rig.stream()
    device, address = rig.device_memory(), allocator.malloc(SIZE)
    rig.driver.begin_capture(stream)
    rig.upload(allocator, device, address, 8, stream)
    rig.driver.destroy_graph(rig.driver.end_capture(stream))
    allocator.free(address)
    rig.driver.synchronize()
    allocator.empty_cache()
    assert allocator.malloc(SIZE) != address
    assert _active(allocator) == 2


def test_a_pool_is_released_as_often_as_it_was_begun(lazy):
    """Until then it keeps its blocks; replays that still run keep them after it."""
    allocator, stream = lazy.allocator(), lazy.stream()
    device, execs = lazy.device_memory(), []
    for _ in range(2):
        with allocator.using(POOL):
            address = allocator.malloc(SIZE)
            lazy.driver.begin_capture(stream)
            lazy.upload(allocator, device, address, 8, stream)
            graph = lazy.driver.end_capture(stream)
            allocator.free(address)
        execs.append(lazy.driver.instantiate(graph))
        lazy.driver.destroy_graph(graph)
    allocator.release_pool(POOL)
    assert allocator.malloc(SIZE) != address
    with lazy.held_up(stream):
        lazy.driver.launch_graph(execs[1], stream)
        allocator.release_pool(POOL, after=[stream])
        assert allocator.malloc(SIZE) != address
    lazy.driver.synchronize_stream(stream)
    assert address in {allocator.malloc(SIZE), allocator.malloc(SIZE)}
    for exec_ in execs:
        lazy.driver.destroy_exec(exec_)


def test_an_ended_stream_is_succeeded(lazy):
    """Uses on it count as its successor's, whether the block is freed or not."""
    allocator, stream, successor = lazy.allocator(), lazy.stream(), lazy.stream()
    device, address = lazy.device_memory(), allocator.malloc(SIZE)
    gone = lazy.driver.create_stream()
    lazy.upload(allocator, device, address, 8, gone)
    event = lazy.driver.create_event()
    lazy.driver.record_event(event, gone)
    lazy.driver.wait_event(successor, event)
    lazy.driver.destroy_event(event)
    lazy.driver.destroy_stream(gone)
    allocator.forget_stream(gone, successor)
    allocator.free(address)
    lazy.driver.synchronize_stream(successor)
    lazy.driver.synchronize_stream(stream)
    assert allocator.malloc(SIZE) == address
    allocator.free(address)


def test_an_ended_stream_is_succeeded_for_what_a_capture_keeps(lazy):
    """A freed block that it used is free when the pool went and that is done."""
    allocator, stream, successor = lazy.allocator(), lazy.stream(), lazy.stream()
    device, gone = lazy.device_memory(), lazy.driver.create_stream()
    with allocator.using(POOL):
        address = allocator.malloc(SIZE)
        lazy.driver.begin_capture(stream)
        lazy.upload(allocator, device, address, 8, stream)
        lazy.driver.destroy_graph(lazy.driver.end_capture(stream))
    with lazy.held_up(gone):
        lazy.upload(allocator, device, address, 8, gone)
        allocator.free(address)
        event = lazy.driver.create_event()
        lazy.driver.record_event(event, gone)
        lazy.driver.wait_event(successor, event)
        lazy.driver.destroy_event(event)
        lazy.driver.destroy_stream(gone)
        allocator.forget_stream(gone, successor)
        # Without `after` it would wait for the device: for the stream that is held.
        allocator.release_pool(POOL, after=[stream])
        assert allocator.malloc(SIZE) != address
    lazy.driver.synchronize_stream(successor)
    lazy.driver.synchronize_stream(stream)
    assert address in {allocator.malloc(SIZE), allocator.malloc(SIZE)}


def test_views_are_of_what_was_asked_for(rig, read):
    """A view is written like any buffer, and ends where the request did."""
    allocator = rig.allocator()
    address = allocator.malloc(5)
    view = allocator.view(address)
    view[:] = b"abcde"
    assert len(view) == 5
    assert read(address, 5) == b"abcde"
    assert allocator.usable_size(address + 12) == 500
    allocator.free(address)


@pytest.mark.parametrize("misuse", ["inside", "twice", "foreign"])
def test_misuse_says_what_is_at_the_address(rig, misuse):
    """Nothing changes, and the text names the address and what to give instead."""
    allocator = rig.allocator()
    address, freed = allocator.malloc(64), allocator.malloc(64)
    allocator.free(freed)
    wrong, says = {
        "inside": (address + 8, "lies inside the pinned block of 64 bytes at 0x"),
        "twice": (freed, "was freed already: free each block once"),
        "foreign": (12345, "0x3039 is no pinned memory of this allocator"),
    }[misuse]
    for use in (allocator.free, allocator.view):
        with pytest.raises(MisuseError, match=says):
            use(wrong)
    if misuse != "inside":
        for use in (
            allocator.usable_size,
            lambda address: allocator.record_use(address, rig.stream()),
        ):
            with pytest.raises(MisuseError, match=says):
                use(wrong)
    assert _active(allocator) == 1
    allocator.free(address)


def test_pools_are_begun_and_ended_in_order(rig):
    """Each step that cannot be is refused by the pool's name."""
    allocator = rig.allocator()
    for use, says in (
        (lambda: allocator.begin(PoolId(0, 0)), r"\(0, 0\) is nobody's own"),
        (lambda: allocator.end(POOL), r"\(7, 0\) is not the last .* which is none"),
        (lambda: allocator.release_pool(POOL), r"\(7, 0\) is none of a capture"),
    ):
        with pytest.raises(MisuseError, match=says):
            use()
    with allocator.using(POOL):
        with pytest.raises(MisuseError, match=r"routed to pool .* already"):
            allocator.begin(POOL)
        with pytest.raises(MisuseError, match="end it before the release"):
            allocator.release_pool(POOL)
        with (
            pytest.raises(MisuseError, match=r"which is \(0, 9\)"),
            allocator.using(PoolId(0, 9)),
        ):
            allocator.end(POOL)
    allocator.release_pool(POOL)
    allocator.release_pool(PoolId(0, 9))


def test_closing_leaves_what_is_held(rig, read, write):
    """It goes back when freed; other calls are refused."""
    allocator, stream = rig.allocator(), rig.stream()
    device = rig.device_memory()
    held, other = allocator.malloc(64), allocator.malloc(64)
    write(held, 3, 64)
    rig.upload(allocator, device, held, 64, stream)
    allocator.free(other)
    allocator.close()
    allocator.close()
    assert rig.checked.leaks()["host"] == 1
    assert read(held, 64) == bytes([3]) * 64
    with pytest.raises(MisuseError, match="closed: make a new one"):
        allocator.malloc(64)
    allocator.free(held)
    assert "host" not in rig.checked.leaks()


def test_an_error_of_free_is_raised_or_reported(rig):
    """The block is given back all the same, and reused when all was waited for."""
    device, stream = rig.device_memory(), rig.stream()
    for catch_all in (False, True):
        told = []
        settings = Settings(pinned_free_catch_all=catch_all)
        allocator = PinnedAllocator(rig.driver, settings, report=told.append)
        address = allocator.malloc(SIZE)
        rig.upload(allocator, device, address, 8, stream)
        rig.faulty.plan = {rig.faulty.position}
        if catch_all:
            allocator.free(address)
            assert [error.call for error in told] == ["capture_status"]
        else:
            with pytest.raises(DriverError, match="on purpose"):
                allocator.free(address)
            assert told == []
        other = allocator.malloc(SIZE)
        assert other != address
        assert _active(allocator) == 2
        allocator.empty_cache()
        assert _active(allocator) == 1
        allocator.free(other)
        allocator.close()


def test_what_others_freed_does_not_cost_a_block(rig, monkeypatch):
    """An error while their memory goes back is reported, and the request served."""
    told, allocate = [], rig.driver.allocate_host
    settings = Settings(pinned_max_round_threshold=0, pinned_max_cached_size=0)
    allocator = PinnedAllocator(rig.driver, settings, report=told.append)
    freed = allocator.malloc(4 << 20)

    def allocate_meanwhile(size):
        with allocator._intake.lock:
            allocator.free(freed)
        return allocate(size)

    monkeypatch.setattr(rig.driver, "allocate_host", allocate_meanwhile)
    rig.faulty.plan = _Every(rig, "free_host")
    address = allocator.malloc(8 << 20)
    assert [error.call for error in told] == ["free_host"]
    assert allocator.memory_stats()["allocated_bytes.current"] == 8 << 20
    rig.faulty.plan = ()
    allocator.free(address)
    allocator.close()


def test_errors_are_reported_as_warnings(rig):
    """Unless somebody else wants to be told."""
    allocator, stream = rig.allocator(pinned_free_catch_all=True), rig.stream()
    address = allocator.malloc(SIZE)
    allocator.record_use(address, stream)
    rig.faulty.plan = {rig.faulty.position}
    with pytest.warns(RuntimeWarning, match="pinned memory: capture_status failed"):
        allocator.free(address)


def test_an_allocator_that_is_garbage_is_gone(rig):
    """Its background thread does not keep it, and ends."""
    allocator = PinnedAllocator(
        rig.driver, Settings(pinned_use_background_threads=True)
    )
    stream, address = rig.stream(), allocator.malloc(SIZE)
    allocator.record_use(address, stream)
    allocator.free(address)
    allocator.close()
    gone = weakref.ref(allocator)
    del allocator
    gc.collect()
    assert gone() is None
