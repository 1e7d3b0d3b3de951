"""What a request becomes, and how exact blocks share segments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.pinned.stock import ALIGNMENT, LARGEST, SMALL, planned
from sapwood.errors import MisuseError

MIB = 1 << 20
EXACT = {"pinned_max_round_threshold": 0}
SIZES = st.one_of(st.integers(1, 1 << 22), st.integers(1, LARGEST - 1))


@given(SIZES)
def test_by_default_blocks_are_powers_of_two(size):
    """The next one, of at least 512 bytes; each is a segment."""
    request = planned(size, Settings())
    assert request.kind == "whole"
    assert request.segment == request.block >= ALIGNMENT
    assert request.block & (request.block - 1) == 0
    assert size <= request.block < max(2 * size, 2 * ALIGNMENT)


@given(SIZES)
def test_exact_blocks_waste_less_than_512_bytes(size):
    """They fit their segment, which is larger only where small ones share it."""
    request = planned(size, Settings(**EXACT))
    assert size <= request.block < size + ALIGNMENT
    assert request.block <= request.segment
    if size > SMALL:
        assert request.kind == "large"
        assert request.segment < size + 4096 + ALIGNMENT


@given(SIZES, st.integers(0, 1 << 23), st.integers(0, 1 << 23))
def test_above_either_limit_blocks_are_exact(size, threshold, bound):
    """And at it or below they are powers of two."""
    settings = Settings(
        pinned_max_round_threshold=threshold, pinned_max_cached_size=bound
    )
    rounded = size <= threshold and size <= bound
    assert (planned(size, settings).kind == "whole") == rounded


@pytest.mark.parametrize("size", [-1, LARGEST])
def test_impossible_sizes_are_refused(rig, size):
    """The size is named, and what is possible."""
    allocator = rig.allocator()
    with pytest.raises(MisuseError, match="pinned memory: ask for at least 1 byte"):
        allocator.malloc(size)


def test_nothing_is_nowhere(rig):
    """No bytes are at address 0, which is freed and used without effect."""
    allocator, stream = rig.allocator(), rig.stream()
    assert allocator.malloc(0) == 0
    allocator.free(0)
    allocator.record_use(0, stream)
    assert allocator.memory_stats()["active_requests.allocated"] == 0


def test_exact_memory_is_not_rounded(rig):
    """20.4 of anything takes 20.4, where powers of two take 32."""
    size = int(20.4 * MIB)
    allocator = rig.allocator(**EXACT)
    address = allocator.malloc(size)
    assert allocator.memory_stats()["allocated_bytes.current"] < size + 4096
    allocator.free(address)


def test_exact_blocks_are_cut_from_the_smallest_that_fits(rig):
    """Best fit: a large free block is left alone while a smaller one will do."""
    allocator = rig.allocator(**EXACT)
    large, small = allocator.malloc(32 * MIB), allocator.malloc(8 * MIB)
    allocator.free(large)
    allocator.free(small)
    assert allocator.malloc(6 * MIB) == small
    assert allocator.malloc(6 * MIB) == large
    assert allocator.malloc(6 * MIB) == large + 6 * MIB
    assert allocator.memory_stats()["num_host_alloc"] == 2
    for address in (small, large, large + 6 * MIB):
        allocator.free(address)


@given(order=st.permutations(range(6)))
def test_free_neighbours_become_one(open_rig, order):
    """Whatever the order of freeing, the whole can be had again."""
    with open_rig() as rig:
        allocator = rig.allocator(**EXACT)
        allocator.free(allocator.malloc(24 * MIB))
        addresses = [allocator.malloc(4 * MIB) for _ in range(6)]
        for index in order:
            allocator.free(addresses[index])
        whole = allocator.malloc(24 * MIB)
        assert allocator.memory_stats()["num_host_alloc"] == 1
        allocator.free(whole)


def test_small_blocks_leave_large_segments_alone(rig):
    """So that one of a few bytes cannot keep a large one from going back."""
    allocator = rig.allocator(**EXACT)
    allocator.free(allocator.malloc(32 * MIB))
    small = [allocator.malloc(1000) for _ in range(2)]
    assert abs(small[0] - small[1]) == 1024
    assert allocator.empty_cache() == 32 * MIB
    for address in small:
        allocator.free(address)
    assert allocator.empty_cache() == 2 * MIB


def test_idle_memory_is_bounded(rig):
    """Cut segments that are idle go, the oldest first, until the rest fits."""
    allocator = rig.allocator(**EXACT, pinned_max_cached_size=20 * MIB)
    sizes = (8 * MIB, 16 * MIB, 4 * MIB, 24 * MIB)
    kept = (8 * MIB, 16 * MIB, 20 * MIB, 0)
    addresses = [allocator.malloc(size) for size in sizes]
    for freed, address in enumerate(addresses):
        allocator.free(address)
        idle = allocator.memory_stats()["allocated_bytes.current"]
        assert idle - sum(sizes[freed + 1 :]) == kept[freed]


def test_blocks_beyond_the_bound_are_not_cached(rig):
    """Powers of two up to it are, larger requests are exact and go when freed."""
    allocator = rig.allocator(pinned_max_cached_size=4 * MIB)
    small, large = allocator.malloc(3 * MIB), allocator.malloc(5 * MIB)
    assert allocator.usable_size(large) == 5 * MIB
    assert allocator.usable_size(small) == 4 * MIB
    allocator.free(large)
    allocator.free(small)
    assert allocator.memory_stats()["allocated_bytes.current"] == 4 * MIB


def test_the_reserve_is_made_once_and_stays(rig):
    """Blocks of both kinds are cut from it first, and what does not fit is not."""
    allocator = rig.allocator(pinned_reserve_segment_size=4 * MIB)
    addresses = [allocator.malloc(MIB) for _ in range(3)]
    assert addresses == [addresses[0] + index * MIB for index in range(3)]
    outside = allocator.malloc(2 * MIB)
    assert allocator.memory_stats()["num_host_alloc"] == 2
    allocator.configure(Settings(**EXACT, pinned_reserve_segment_size=4 * MIB))
    assert allocator.malloc(MIB) == addresses[0] + 3 * MIB
    for address in (*addresses, addresses[0] + 3 * MIB, outside):
        allocator.free(address)
    assert allocator.empty_cache() == 2 * MIB
    assert allocator.malloc(4 * MIB) == addresses[0]
    allocator.free(addresses[0])


def test_other_settings_change_what_comes_next(rig):
    """Memory that there is stays, and goes back as it was made."""
    allocator = rig.allocator()
    first = allocator.malloc(5000)
    allocator.configure(Settings(pinned_use_cuda_host_register=True))
    assert allocator.settings.pinned_use_cuda_host_register
    second = allocator.malloc(5000)
    assert (rig.checked.leaks()["host"], rig.checked.leaks()["registered"]) == (1, 1)
    for address in (first, second):
        allocator.free(address)
    allocator.empty_cache()
    assert not {"host", "registered"} & set(rig.checked.leaks())
