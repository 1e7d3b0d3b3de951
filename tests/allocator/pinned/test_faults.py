"""Whatever call fails: nothing is lost, nothing is reused too early, work goes on."""

from __future__ import annotations

import pytest

from sapwood.allocator.caching.picture import PoolId
from sapwood.errors import DriverError, OutOfMemory

SIZE = 4096
POOL = PoolId(1, 0)


def _program(rig, allocator, device, stream):
    """Allocate, copy, free, capture, empty: each step whatever became of the others."""

    def use(address):
        rig.upload(allocator, device, address, 8, stream)

    def captured():
        with allocator.using(POOL):
            rig.driver.begin_capture(stream)
            try:
                address = allocator.malloc(SIZE)
                use(address)
                allocator.free(address)
            finally:
                rig.driver.destroy_graph(rig.driver.end_capture(stream))

    def freed(size):
        address = allocator.malloc(size)
        use(address)
        use(address)
        allocator.free(address)

    return (
        lambda: freed(SIZE),
        lambda: freed(3 * SIZE),
        lambda: rig.driver.synchronize_stream(stream),
        captured,
        lambda: allocator.free(allocator.malloc(SIZE)),
        lambda: allocator.release_pool(POOL),
        allocator.empty_cache,
        lambda: freed(SIZE),
        allocator.close,
    )


def _run(open_rig, mode, position):
    """Run the program with the call at a position failing; return its name, if any."""
    with open_rig("latest") as rig:
        allocator, device, stream = (
            rig.allocator(**mode),
            rig.device_memory(),
            rig.stream(),
        )
        rig.faulty.position, rig.faulty.plan = 0, {position}
        failed = False
        for step in _program(rig, allocator, device, stream):
            try:
                step()
            except DriverError:
                assert not failed
                failed = True
                stats = allocator.memory_stats()
                assert stats["active_bytes.current"] <= stats["allocated_bytes.current"]
        # Memory that cannot be had is asked for once more, unless it is the reserve.
        if rig.faulty.fired != "allocate_host":
            assert failed == (rig.faulty.fired is not None)
        for address in list(allocator._stock.live):
            allocator.free(address)
        assert allocator.memory_stats()["allocated_bytes.current"] == 0
        return rig.faulty.fired


def test_every_call_may_fail(open_rig, mode, positions):
    """Each error comes out once, and at the end everything was given back."""
    for position in positions:
        if _run(open_rig, mode, position) is None:
            break
    assert position > 20


def test_the_program_makes_every_call(open_rig, mode):
    """What fails above, one by one, are the calls for blocks and for events."""
    with open_rig("latest") as rig:
        allocator, device, stream = (
            rig.allocator(**mode),
            rig.device_memory(),
            rig.stream(),
        )
        for step in _program(rig, allocator, device, stream):
            step()
        made = set(rig.driver.counts())
        for address in list(allocator._stock.live):
            allocator.free(address)
    assert {"record_event", "create_event", "query_event"} <= made


def test_memory_that_cannot_be_registered_is_no_leak(rig):
    """It is the system's again, and the next request is served."""
    allocator = rig.allocator(pinned_use_cuda_host_register=True)
    rig.faulty.plan = {rig.faulty.position}
    with pytest.raises(DriverError, match="register_host failed"):
        allocator.malloc(SIZE)
    assert allocator.memory_stats()["allocations.allocated"] == 0
    allocator.free(allocator.malloc(SIZE))


def test_a_reserve_that_cannot_be_had_is_asked_for_again(rig):
    """The request that wanted it fails, the next one makes it."""
    allocator = rig.allocator(pinned_reserve_segment_size=1 << 20)
    rig.faulty.plan = {rig.faulty.position}
    with pytest.raises(OutOfMemory):
        allocator.malloc(SIZE)
    address = allocator.malloc(SIZE)
    assert allocator.memory_stats()["allocated_bytes.current"] == 1 << 20
    allocator.free(address)


def test_memory_that_the_system_does_not_have(rig):
    """More than there are addresses is out of memory, of the device or the system."""
    for mode in ({}, {"pinned_use_cuda_host_register": True}):
        allocator = rig.allocator(pinned_max_round_threshold=0, **mode)
        with pytest.raises(OutOfMemory) as caught:
            allocator.malloc(1 << 55)
        assert caught.value.asked == 1 << 55
        assert isinstance(caught.value.__cause__, DriverError)
