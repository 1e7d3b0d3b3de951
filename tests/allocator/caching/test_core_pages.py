"""Where memory comes from: created, or free pages mapped anew."""

from __future__ import annotations

import pytest

from sapwood.allocator.caching.allocator import Allocator
from sapwood.allocator.caching.settings import DEFAULT
from sapwood.allocator.caching.validate import validate
from sapwood.allocator.simulate.ours import PAGE, Ground
from sapwood.driver.layers import Recorded
from sapwood.errors import OutOfMemory
from sapwood.units import Size

MIB = 1 << 20


def _made(total=1 << 34, **settings):
    driver = Recorded(Ground(Size(total)))
    return Allocator(driver, DEFAULT.replace(**settings)), driver


def _step(allocator, stream, number, share):
    """Allocate a step's blocks, and free them: sizes drift with the number."""
    held = [
        allocator.malloc(int((1 + layer % 5) * (1 + number * share) * MIB), stream)
        for layer in range(30)
    ]
    for address in reversed(held[::2] + held[1::2]):
        allocator.free(address)


def test_drifting_sizes_do_not_pile_up():
    """What is reserved stays near the most that was ever allocated."""
    allocator, driver = _made()
    stream = driver.create_stream()
    for number in range(60):
        _step(allocator, stream, number, 0.01)
    total = allocator.counters().total
    assert total.reserved_bytes.peak <= 1.1 * total.allocated_bytes.peak
    assert validate(allocator.picture()) == []


def test_a_program_that_repeats_itself_comes_to_rest():
    """After some rounds of the same requests, the driver is not asked any more."""
    allocator, driver = _made()
    stream = driver.create_stream()
    asked = []
    for _ in range(40):
        driver.reset()
        for number in range(5):
            _step(allocator, stream, number, 0.1)
        asked.append(sum(driver.counts().values()))
    assert asked[0] > 0
    assert asked[-1] == 0


def test_pages_of_a_busy_stream_stay(monkeypatch):
    """Nobody is waited for before memory runs out: then new memory is made."""
    allocator, driver = _made()
    one, two = driver.create_stream(), driver.create_stream()
    allocator.free(allocator.malloc(400 * MIB, one))
    monkeypatch.setattr(driver.driver, "query_stream", lambda _: False)
    driver.reset()
    allocator.malloc(300 * MIB, two)
    assert not driver.counts().keys() & {"unmap", "synchronize_stream"}
    assert allocator.counters().total.reserved_bytes.current >= 700 * MIB


def test_pages_of_an_idle_stream_serve_others():
    """Free pages of a stream whose work is over are mapped where they are needed."""
    allocator, driver = _made()
    one, two = driver.create_stream(), driver.create_stream()
    allocator.free(allocator.malloc(400 * MIB, one))
    allocator.malloc(300 * MIB, two)
    assert allocator.counters().total.reserved_bytes.current <= 420 * MIB
    assert validate(allocator.picture()) == []


def test_pages_of_a_capture_stay_where_they_are():
    """A recording's memory is at its addresses as long as its pool is in use."""
    allocator, driver = _made(total=64 * MIB)
    stream = driver.create_stream()
    pool = allocator.create_pool(capture=True)
    with allocator.using(pool):
        block = allocator.malloc(40 * MIB, stream)
    allocator.free(block)
    with pytest.raises(OutOfMemory):
        allocator.malloc(40 * MIB, stream)
    allocator.empty_cache()
    assert allocator.counters().total.reserved_bytes.current == 40 * MIB
    allocator.release_pool(pool)
    assert allocator.malloc(40 * MIB, stream)


def test_classic_segments_are_stitched_at_last():
    """Free pages of split segments serve one request, where no segment could."""
    allocator, driver = _made(total=96 * MIB, expandable_segments=False)
    stream = driver.create_stream()
    parts = [allocator.malloc(20 * MIB, stream) for _ in range(2)]
    allocator.malloc(20 * MIB, stream)
    for part in parts:
        allocator.free(part)
    held = [allocator.malloc(2 * MIB, stream) for _ in range(2)]
    assert allocator.malloc(50 * MIB, stream)
    assert len(held) == 2
    assert validate(allocator.picture()) == []


def test_addresses_are_given_back_and_bounded():
    """Many streams cost few addresses, and what is unused is given back."""
    allocator, driver = _made(total=1 << 37)
    for _ in range(300):
        stream = driver.create_stream()
        allocator.free(allocator.malloc(3 * MIB, stream))
    reservations = driver.driver.memory.reservations
    assert sum(reservations.values()) <= 12 << 40
    allocator.empty_cache()
    assert (reservations, driver.driver.held) == ({}, 0)


@pytest.mark.parametrize("reserve", [64 * MIB, 0.001])
def test_small_reservations_are_followed_by_others(reserve):
    """A range that is used up costs a second one, and no request."""
    allocator, driver = _made(expandable_segments_reserve=reserve)
    stream = driver.create_stream()
    for _ in range(10):
        assert allocator.malloc(30 * MIB, stream)
    assert len(allocator.picture().segments) > 2


def test_growth_is_by_whole_pages_and_no_more():
    """What is free already counts towards a request that needs more."""
    allocator, driver = _made()
    stream = driver.create_stream()
    allocator.malloc(5 * MIB, stream)
    last = allocator.malloc(3 * MIB, stream)
    assert allocator.counters().total.reserved_bytes.current == 8 * MIB
    allocator.free(last)
    allocator.malloc(8 * MIB + 1, stream)
    reserved = allocator.counters().total.reserved_bytes.current
    assert (reserved, reserved % PAGE) == (14 * MIB, 0)
