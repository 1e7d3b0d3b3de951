"""Table A: allocation, out of memory, the fraction, statistics.

Each docstring begins with the row of docs/allocator-rows.md that the test is for.
"""

from __future__ import annotations

import pytest

from sapwood.errors import DriverError, MisuseError, OutOfMemory

MIB = 1 << 20
EIB = 1 << 60


def _all(rig):
    return rig.allocator.counters().total


def test_a_block_counts_while_it_is_held(either):
    """A test_memory_allocation: a byte counts as a block, and no longer than held."""
    stream, before = either.stream(), _all(either)
    address = either.allocator.malloc(1, stream)
    held = _all(either)
    assert held.allocated_bytes.current == before.allocated_bytes.current + 512
    assert held.requested_bytes.current == before.requested_bytes.current + 1
    either.allocator.free(address)
    after = _all(either)
    assert after.allocated_bytes.current == before.allocated_bytes.current
    assert after.allocation.current == before.allocation.current


def test_active_bytes_are_exact(either):
    """A test_memory_stats: 1 KiB is 1024 active bytes; a reset peak is the present."""
    stream, allocator = either.stream(), either.allocator
    for address in [allocator.malloc(size, stream) for size in (5000, 3 * MIB)]:
        allocator.free(address)
    allocator.empty_cache()
    allocator.reset_peaks()
    allocator.reset_accumulated()
    before = _all(either).active_bytes
    assert before.peak == before.current
    assert (before.allocated, before.freed) == (0, 0)
    address = allocator.malloc(1024, stream)
    held = _all(either).active_bytes
    assert held.current == held.peak == before.current + 1024
    assert held.allocated == 1024
    allocator.free(address)
    allocator.empty_cache()
    after = _all(either).active_bytes
    assert (after.current, after.freed) == (before.current, 1024)
    assert after.peak == before.current + 1024


def test_the_driver_s_codes_are_errors(make_rig):
    """A test_check_error: what succeeds raises nothing, code 2 is out of memory."""
    rig = make_rig(total=16 * MIB)
    extent = rig.checked.create(2 * MIB)
    rig.checked.release(extent)
    with pytest.raises(OutOfMemory) as raised:
        rig.atlas.create(18 * MIB)
    assert (raised.value.code, raised.value.name) == (2, "OUT_OF_MEMORY")
    assert isinstance(raised.value, DriverError | MemoryError)


def test_an_absurd_size_is_refused_by_name(either):
    """A test_out_of_memory: the text says what was asked; afterwards work goes on."""
    stream, allocator = either.stream(), either.allocator
    with pytest.raises(OutOfMemory) as raised:
        allocator.malloc(800_000_000 << 30, stream)
    assert "TiB" in str(raised.value)
    assert raised.value.asked >= 800_000_000 << 30
    address = allocator.malloc(MIB, stream)
    either.fill(address, MIB, 7, stream)
    assert either.read(address, MIB, stream).count(7) == MIB


@pytest.mark.parametrize("size", [EIB, EIB + 1, 1 << 63, 1 << 70])
def test_an_impossible_size_has_its_own_text(either, size):
    """A test_out_of_memory: 1 EiB and more is no size that any device has."""
    stream, before = either.stream(), either.allocator.picture()
    counts = either.recorded.counts()
    with pytest.raises((OutOfMemory, MisuseError), match=r"EiB|EB"):
        either.allocator.malloc(size, stream)
    assert either.recorded.counts() == counts, "the driver was asked"
    assert either.allocator.picture().segments == before.segments


def test_half_the_device_twice(make_rig):
    """A test_out_of_memory_retry: what did not fit does when the first half is free."""
    rig = make_rig(total=64 * MIB)
    stream, allocator = rig.stream(), rig.allocator
    held = allocator.malloc(34 * MIB, stream)
    with pytest.raises(OutOfMemory):
        allocator.malloc(34 * MIB, stream)
    assert allocator.counters().num_ooms == 1
    allocator.free(held)
    assert allocator.malloc(34 * MIB, rig.stream()), "another stream's cache goes first"


def test_the_fraction_limits_what_is_reserved(make_rig):
    """A test_set_per_process_memory_fraction: half is half, and work goes on after."""
    rig = make_rig(total=128 * MIB)
    stream, allocator = rig.stream(), rig.allocator
    allocator.memory_fraction = 0.5
    held = allocator.malloc(62 * MIB, stream)
    with pytest.raises(OutOfMemory):
        allocator.malloc(64 * MIB, stream)
    rig.fill(held, 62 * MIB, 3, stream)
    allocator.free(held)
    assert rig.allocator.malloc(64 * MIB, stream)
    assert rig.atlas.used() <= 64 * MIB


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (1, TypeError),
        (0, TypeError),
        ("0.5", TypeError),
        (True, TypeError),
        (-0.1, ValueError),
        (1.1, ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
    ],
)
def test_a_fraction_is_a_float_from_0_to_1(rig, wrong, error):
    """A test_set_per_process_memory_fraction: all else is refused and changes none."""
    rig.allocator.memory_fraction = 0.75
    with pytest.raises((error, MisuseError), match="fraction"):
        rig.allocator.memory_fraction = wrong
    assert rig.allocator.memory_fraction == 0.75


@pytest.mark.parametrize("fraction", [0.0, 0.1, 1 / 3, 0.5, 0.999, 1.0])
def test_the_fraction_is_what_was_set(rig, fraction):
    """A test_get_per_process_memory_fraction: reading gives back exactly what was set.

    Nothing can be had of nothing.
    """
    rig.allocator.memory_fraction = fraction
    assert rig.allocator.memory_fraction == fraction
    if not fraction:
        with pytest.raises(OutOfMemory):
            rig.allocator.malloc(1, rig.stream())


def test_pending_frees_are_waited_for_before_failing(make_rig):
    """A test_caching_allocator_record_stream_oom: freed in use is no out of memory."""
    rig = make_rig(total=64 * MIB)
    own, other, allocator = rig.stream(), rig.stream(), rig.allocator
    for value in range(40):
        address = allocator.malloc(16 * MIB, own)
        rig.fill(address, 16 * MIB, value, own)
        rig.wait(other, own)
        rig.fill(address, 16 * MIB, value + 100, other)
        allocator.record_stream(address, other)
        allocator.free(address)
    assert allocator.counters().num_ooms == 0


def test_leak_checks_let_the_user_s_error_through(open_rig):
    """A test_cuda_memory_leak_detection_propagates_errors: as it was raised."""
    with pytest.raises(ArithmeticError, match="mine"), open_rig() as rig:
        rig.allocator.malloc(1, rig.stream())
        raise ArithmeticError("mine")
