"""Laws of the caching allocator, whatever the settings and the device.

docs/allocator-rows.md says which of them keeps which of the ten invariants.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.allocator.caching.allocator import Allocator
from sapwood.allocator.caching.picture import DEFAULT_POOL
from sapwood.allocator.caching.settings import DEFAULT
from sapwood.driver.emulated import Emulated
from sapwood.errors import MisuseError
from sapwood.units import Size

MIB = 1 << 20


def _states(rig):
    return [(block.state, block.size) for block in rig.blocks()]


# What a request gets.


def test_nothing_is_no_block(either):
    """Zero bytes are address 0, which may be freed and recorded; nothing is touched."""
    allocator, stream = either.allocator, either.stream()
    either.recorded.reset()
    assert allocator.malloc(0, stream) == 0
    allocator.free(0)
    allocator.record_stream(0, stream)
    assert either.recorded.counts() == {}
    assert allocator.counters().total.allocation.allocated == 0
    assert allocator.picture().segments == ()


@pytest.mark.parametrize("size", [-1, -(1 << 40)])
def test_less_than_nothing_is_refused(either, size):
    """A negative size is a mistake, and named."""
    with pytest.raises(MisuseError, match=str(size)):
        either.allocator.malloc(size, either.stream())


@given(size=st.integers(1, 3 << 20))
def test_rounding_is_up_to_512(size):
    """A block is the smallest multiple of 512 bytes that holds its request."""
    device = Emulated(Size(32 * MIB), Size(2 * MIB))
    allocator, stream = Allocator(device), device.create_stream()
    address = allocator.malloc(size, stream)
    (block,) = [
        block
        for segment in allocator.picture().segments
        for block in segment.blocks
        if block.state == "allocated"
    ]
    assert (block.address, block.requested) == (address, size)
    assert block.size == -(-size // 512) * 512
    allocator.free(address)
    allocator.close()
    device.close()


@given(
    size=st.integers(1, 12 << 20), divisions=st.sampled_from([1, 2, 4, 8, 16, 32, 64])
)
def test_rounding_to_divisions(size, divisions):
    """Sizes round to equal steps between powers of two, where steps are no trifle."""
    device = Emulated(Size(32 * MIB), Size(2 * MIB))
    settings = DEFAULT.revised(f"roundup_power2_divisions:{divisions}")
    allocator, stream = Allocator(device, settings), device.create_stream()
    address = allocator.malloc(size, stream)
    found = allocator.usable_size(address)
    expected = -(-size // 512) * 512
    if divisions > 1 and size > 512 * divisions:
        floor = 1 << (size.bit_length() - 1)
        step = floor // divisions
        expected = -(-size // step) * step
    assert found == expected
    allocator.free(address)
    allocator.close()
    device.close()


def test_the_best_fit_is_taken(either):
    """Of free blocks, the smallest that suffices serves, then the lowest."""
    allocator, stream = either.allocator, either.stream()
    sizes = [4096, 512, 2048, 512, 1024, 512, 2048, 512]
    blocks = [allocator.malloc(size, stream) for size in sizes]
    for block, size in zip(blocks, sizes, strict=True):
        if size > 512:
            allocator.free(block)
    assert allocator.malloc(1024, stream) == blocks[4]
    assert allocator.malloc(1500, stream) == blocks[2]
    assert allocator.malloc(600, stream) == blocks[6]
    assert allocator.malloc(600, stream) == blocks[6] + 1024
    assert allocator.malloc(4000, stream) == blocks[0]


def test_what_is_freed_is_whole_again(either):
    """Free neighbours are one block, in whatever order they were freed."""
    allocator, stream = either.allocator, either.stream()
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]):
        blocks = [allocator.malloc(300_000, stream) for _ in range(4)]
        for place in order:
            allocator.free(blocks[place])
        reserved = either.atlas.used()
        whole = allocator.malloc(MIB, stream)
        assert whole == min(blocks)
        assert either.atlas.used() == reserved
        allocator.free(whole)
    assert [state for state, _ in _states(either) if state != "unmapped"] == ["free"]


# What a hit costs.


def test_a_hit_asks_the_driver_nothing(either):
    """What the cache serves makes no driver call, even while others are pending."""
    allocator, stream = either.allocator, either.stream()
    sizes = [512, 5000, MIB, 3 * MIB]
    for address in [allocator.malloc(size, stream) for size in sizes]:
        allocator.free(address)
    either.recorded.reset()
    for _ in range(20):
        held = [allocator.malloc(size, stream) for size in sizes]
        for address in held:
            allocator.record_stream(address, stream)
            allocator.free(address)
    assert either.recorded.counts() == {}
    assert allocator.counters().hits >= 80


# Mistakes.


def test_a_block_is_freed_once(either):
    """Freeing again names the address, and changes nothing."""
    allocator, stream = either.allocator, either.stream()
    address, other = allocator.malloc(1000, stream), allocator.malloc(1000, stream)
    allocator.free(address)
    before = _states(either)
    with pytest.raises(MisuseError, match=f"{address:#_x}"):
        allocator.free(address)
    assert _states(either) == before
    allocator.free(other)


@pytest.mark.parametrize("offset", [1, 512, 1 << 40])
def test_only_starts_of_blocks_are_freed(either, offset):
    """An address inside a block, or of nothing, is refused by its number."""
    allocator = either.allocator
    address = allocator.malloc(3000, either.stream())
    before = _states(either)
    with pytest.raises(MisuseError, match=f"{address + offset:#_x}"):
        allocator.free(address + offset)
    assert _states(either) == before


def test_a_pending_block_is_freed_once(either):
    """What waits for another stream was freed already."""
    allocator = either.allocator
    own, other = either.stream(), either.stream()
    address = allocator.malloc(1000, own)
    allocator.record_stream(address, other)
    either.busy.keep(other)
    allocator.free(address)
    with pytest.raises(MisuseError, match=f"{address:#_x}"):
        allocator.free(address)
    either.busy.let_go(other)


def test_a_closed_allocator_says_so(either):
    """After close every request is refused by name; closing again does nothing."""
    allocator, stream = either.allocator, either.stream()
    allocator.free(allocator.malloc(1000, stream))
    allocator.close()
    allocator.close()
    with pytest.raises(MisuseError, match="clos"):
        allocator.malloc(1000, stream)


# What goes back.


def test_holes_go_back_too(make_rig):
    """An expandable segment gives back free pages between blocks that live."""
    rig = make_rig(page=Size(2 * MIB))
    allocator, stream = rig.allocator, rig.stream()
    blocks = [allocator.malloc(20 * MIB, stream) for _ in range(3)]
    rig.fill(blocks[0], 20 * MIB, 1, stream)
    rig.fill(blocks[2], 20 * MIB, 2, stream)
    before = rig.atlas.used()
    allocator.free(blocks[1])
    allocator.empty_cache()
    assert before - rig.atlas.used() == 20 * MIB
    assert rig.read(blocks[0], 20 * MIB, stream).count(1) == 20 * MIB
    assert rig.read(blocks[2], 20 * MIB, stream).count(2) == 20 * MIB
    assert allocator.malloc(20 * MIB, stream) == blocks[1]


def test_emptying_waits_for_the_work_of_the_cache(either):
    """What is unmapped was idle: queued work on it runs before."""
    allocator, stream = either.allocator, either.stream()
    for size in (1000, 3 * MIB, 30 * MIB):
        address = allocator.malloc(size, stream)
        either.fill(address, size, 1, stream)
        allocator.free(address)
    allocator.empty_cache()
    assert either.atlas.used() == 0
    either.checked.synchronize()


def test_trimming_keeps_what_it_should(either):
    """`trim` gives back what is cached beyond ``keep``, and says how much."""
    allocator, stream = either.allocator, either.stream()
    for address in [allocator.malloc(20 * MIB, stream) for _ in range(4)]:
        allocator.free(address)
    assert either.atlas.used() == 80 * MIB
    given = allocator.trim(40 * MIB)
    assert either.atlas.used() == 80 * MIB - given
    assert 40 * MIB <= either.atlas.used() <= 60 * MIB
    assert allocator.trim() == 80 * MIB - given
    assert either.atlas.used() == 0


def test_a_pool_s_cache_is_emptied_alone(either):
    """`empty_cache` of a pool that is over leaves all others as they are."""
    allocator, stream = either.allocator, either.stream()
    pool = allocator.create_pool()
    with allocator.using(pool):
        inside = allocator.malloc(3 * MIB, stream)
    allocator.free(allocator.malloc(3 * MIB, stream))
    allocator.release_pool(pool)
    allocator.free(inside)
    before = either.atlas.used()
    allocator.empty_cache(pool)
    left = {segment.pool for segment in allocator.picture().segments}
    assert 0 < either.atlas.used() < before
    assert pool not in left


# Before giving up.


def test_free_pages_of_anywhere_are_stitched(make_rig):
    """Memory that is free in pieces serves one request that needs them all."""
    rig = make_rig(total=80 * MIB)
    allocator, stream = rig.allocator, rig.stream()
    blocks = [allocator.malloc(10 * MIB, stream) for _ in range(8)]
    for number, block in enumerate(blocks):
        rig.fill(block, 10 * MIB, number, stream)
    for block in blocks[::2]:
        allocator.free(block)
    whole = allocator.malloc(36 * MIB, stream)
    rig.fill(whole, 36 * MIB, 99, stream)
    for number, block in list(enumerate(blocks))[1::2]:
        assert rig.read(block, 10 * MIB, stream).count(number) == 10 * MIB
    assert rig.read(whole, 36 * MIB, stream).count(99) == 36 * MIB
    rig.check()


def test_reclaimers_are_asked_before_giving_up(either):
    """Who offers memory under pressure is asked, and the request then fits."""
    allocator, stream = either.allocator, either.stream()
    offered = [allocator.malloc(60 * MIB, stream)]

    def reclaim(*_):
        if not offered:
            return False
        allocator.free(offered.pop())
        return True

    detach = allocator.on_pressure(reclaim)
    assert allocator.malloc(100 * MIB, stream)
    assert offered == []
    detach()


def test_garbage_is_collected_above_the_threshold(classic):
    """Old free segments go back before the driver is asked beyond the threshold."""
    allocator, stream = classic.allocator, classic.stream()
    allocator.configure("expandable_segments:False,garbage_collection_threshold:0.5")
    allocator.memory_fraction = 0.75
    held = [allocator.malloc(size * MIB, stream) for size in (24, 26, 28)]
    for address in held:
        allocator.free(address)
    reserved = classic.atlas.used()
    allocator.malloc(40 * MIB, stream)
    assert classic.atlas.used() < reserved + 40 * MIB
    assert allocator.counters().num_alloc_retries == 0


def test_a_split_limit_keeps_large_blocks_whole(classic):
    """Blocks above the limit serve requests above the limit, and are not split."""
    allocator, stream = classic.allocator, classic.stream()
    allocator.configure("expandable_segments:False,max_split_size_mb:20")
    large = allocator.malloc(40 * MIB, stream)
    allocator.free(large)
    small = allocator.malloc(12 * MIB, stream)
    assert not large <= small < large + 40 * MIB
    assert allocator.malloc(30 * MIB, stream) == large
    assert allocator.usable_size(large) == 40 * MIB


@pytest.mark.parametrize("limit", [20, 24, 64])
@pytest.mark.parametrize("made", [MIB + 1, 9 * MIB, 20 * MIB])
def test_an_ordinary_segment_serves_again(classic, limit, made):
    """However low the split limit: one that is whole again serves small requests."""
    allocator, stream = classic.allocator, classic.stream()
    allocator.configure(f"expandable_segments:False,max_split_size_mb:{limit}")
    for size in (made, 2 * MIB, 15 * MIB):
        allocator.free(allocator.malloc(size, stream))
        assert classic.atlas.used() == 20 * MIB
    assert allocator.counters().oversize_segments.current == 0


def test_a_new_segment_serves_who_asked_for_it(classic):
    """However low the split limit is: what was made for a request is split for it."""
    allocator, stream = classic.allocator, classic.stream()
    allocator.configure("expandable_segments:False,max_split_size_mb:20")
    for number in range(1, 4):
        assert allocator.malloc(MIB + 1, stream)
        assert classic.atlas.used() <= number * 20 * MIB


def test_ranges_do_not_leak_beside_a_split_limit(make_rig):
    """Cycles of large and small requests reserve no more from round to round."""
    rig = make_rig(
        total=256 * MIB,
        settings=DEFAULT.replace(max_split_size=20 * MIB),
    )
    allocator, stream = rig.allocator, rig.stream()
    reserved, kept = [], []
    for _ in range(12):
        large = [allocator.malloc(size, stream) for size in (45 * MIB, 22 * MIB)]
        kept.append(allocator.malloc(2 * MIB, stream))
        for address in large:
            allocator.free(address)
        reserved.append(rig.atlas.used())
    assert reserved[-1] - reserved[2] <= 9 * 4 * MIB, reserved


# Books.


def test_what_is_reserved_is_counted_once(either):
    """Reserved bytes are the mapped extents, each once, to the byte."""
    allocator, stream = either.allocator, either.stream()
    held = []
    for size in (1000, 3 * MIB, 30 * MIB, MIB, 11 * MIB):
        held.append(allocator.malloc(size, stream))
        reserved = allocator.counters().total.reserved_bytes
        assert reserved.current == either.atlas.used()
    for address in held:
        allocator.free(address)
        allocator.empty_cache()
        reserved = allocator.counters().total.reserved_bytes
        assert reserved.current == either.atlas.used()
        assert reserved.peak == reserved.allocated
    assert reserved.current == 0


def test_the_same_requests_get_the_same_places(make_rig):
    """Nothing but the requests decides: two allocators answer alike."""
    answers = []
    for _ in range(2):
        rig = make_rig()
        allocator, streams = rig.allocator, [rig.stream(), rig.stream()]
        held, offsets = [], []
        for step in range(120):
            size = (step * 7919) % (5 * MIB) + 1
            held.append(allocator.malloc(size, streams[step % 2]))
            if step % 3:
                allocator.free(held.pop(step % len(held)))
            picture = allocator.picture()
            bases = sorted(segment.address for segment in picture.segments)
            offsets.append(
                [
                    (place, block.address - base, block.size, block.state)
                    for place, base in enumerate(bases)
                    for segment in picture.segments
                    if segment.address == base
                    for block in segment.blocks
                ]
            )
        answers.append(offsets)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("way", ["streams", "anybody"])
def test_a_pool_is_ended_where_it_was_begun_last(either, way):
    """Routes nest: the one that was begun first is there until the last `end`."""
    allocator = either.allocator
    one, two = either.stream(), either.stream()
    pool = allocator.create_pool()

    def pool_of(stream):
        address = allocator.malloc(MIB, stream)
        (found,) = [
            segment.pool
            for segment in allocator.picture().segments
            if any(b.address == address for b in segment.blocks)
        ]
        allocator.free(address)
        return found

    allocator.begin(pool, stream=one)
    if way == "streams":
        allocator.begin(pool, stream=two)
    else:
        allocator.begin(pool, thread=False)
    assert [pool_of(one), pool_of(two)] == [pool, pool]
    allocator.end(pool)
    assert [pool_of(one), pool_of(two)] == [pool, DEFAULT_POOL]
    allocator.end(pool)
    assert [pool_of(one), pool_of(two)] == [DEFAULT_POOL] * 2
    allocator.release_pool(pool)
