"""Tables F and G: private pools, who is routed to them, and what they give back.

Each docstring begins with the row of docs/allocator-rows.md that the test is for.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sapwood.allocator.caching.picture import DEFAULT_POOL
from sapwood.errors import MisuseError, OutOfMemory

MIB = 1 << 20


def _segments(rig, pool):
    return [s for s in rig.allocator.picture().segments if s.pool == pool]


def _pool(rig, pool):
    """Return the picture of a pool, if the allocator knows it still."""
    found = [each for each in rig.allocator.picture().pools if each.id == pool]
    return found[0] if found else None


def _in_thread(call):
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(call).result(timeout=30)


class Source:
    """A source of segments that remembers what it gave and got back."""

    def __init__(self, rig):
        self.rig, self.held, self.gone = rig, {}, []

    def allocate(self, size, stream):
        from sapwood.driver.api import Access

        del stream
        driver = self.rig.atlas
        address = driver.reserve(size)
        extent = driver.create(size)
        driver.map(address, extent)
        driver.release(extent)
        driver.set_access(address, size, Access.READ_WRITE)
        self.held[address] = size
        return address

    def free(self, address, size, stream):
        del stream
        assert self.held.pop(address) == size
        self.rig.atlas.unmap(address, size)
        self.rig.atlas.unreserve(address, size)
        self.gone.append(address)


# F: of checkpoints only what does not need any.


def test_only_the_routed_thread_s_blocks_are_the_pool_s(either):
    """F test_allocate_in_thread_to_pool: others go elsewhere, and it empties to 0."""
    allocator, stream = either.allocator, either.stream()
    pool = allocator.create_pool()
    entered, done = threading.Event(), threading.Event()

    def routed():
        with allocator.using(pool):
            entered.set()
            assert done.wait(30)
            return [allocator.malloc(size, stream) for size in (MIB, 30 * MIB)]

    with ThreadPoolExecutor(1) as executor:
        inside = executor.submit(routed)
        assert entered.wait(30)
        outside = [allocator.malloc(size, stream) for size in (MIB, 30 * MIB)]
        done.set()
        held = inside.result(timeout=30)
    found = {
        block.address: segment.pool
        for segment in allocator.picture().segments
        for block in segment.blocks
    }
    assert {found[each] for each in held} == {pool}
    assert {found[each] for each in outside} == {DEFAULT_POOL}
    assert len(_segments(either, pool)) == 2
    for address in held:
        allocator.free(address)
    allocator.release_pool(pool)
    allocator.empty_cache()
    assert _segments(either, pool) == []


def test_live_blocks_of_a_pool_are_those_allocated(either):
    """F test_check_pool_live_allocations: the pictured set is exact at every step."""
    allocator, stream = either.allocator, either.stream()
    pool = allocator.create_pool()
    with allocator.using(pool):
        held = {allocator.malloc(size, stream) for size in (1, 700, 3 * MIB, 9 * MIB)}

    def live():
        return {
            block.address
            for segment in _segments(either, pool)
            for block in segment.blocks
            if block.state == "allocated"
        }

    assert live() == held
    while held:
        allocator.free(held.pop())
        assert live() == held
    allocator.release_pool(pool)


def test_growth_leaves_what_was_there_in_place(make_rig):
    """A range grows behind what lives."""
    rig = make_rig(total=128 * MIB)
    allocator, stream = rig.allocator, rig.stream()
    pool = allocator.create_pool()
    with allocator.using(pool):
        first = allocator.malloc(2 * MIB, stream)
        second = allocator.malloc(38 * MIB, stream)
    (segment,) = _segments(rig, pool)
    assert first == segment.address
    assert second == first + 2 * MIB
    allocator.free(second)
    states = [(b.state, b.size) for b in _segments(rig, pool)[0].blocks]
    assert states[:2] == [("allocated", 2 * MIB), ("free", 38 * MIB)]
    assert {state for state, _ in states[2:]} <= {"unmapped"}
    allocator.release_pool(pool)


# G.


def test_ids_are_a_user_s_or_a_capture_s(rig):
    """G test_mempool_id: (0, n) for users, (n, 0) for captures, each its own."""
    made = [rig.allocator.create_pool(capture=number % 2 == 1) for number in range(6)]
    assert len(set(made)) == 6
    for number, pool in enumerate(made):
        assert (pool.capture > 0, pool.user > 0) == (number % 2 == 1, number % 2 == 0)
        rig.allocator.release_pool(pool)


def test_ids_are_unique_across_threads(rig):
    """G test_mempool_multithread: four threads never get the same pool."""
    with ThreadPoolExecutor(4) as executor:
        ids = list(executor.map(lambda _: rig.allocator.create_pool(), range(40)))
    assert len(set(ids)) == 40
    for pool in ids:
        rig.allocator.release_pool(pool)


def test_segments_and_history_name_their_pool(rig):
    """G test_pool_id_in_snapshot: a segment's pool and its events' pool agree."""
    allocator, stream = rig.allocator, rig.stream()
    allocator.record_history("all")
    pool = allocator.create_pool()
    with allocator.using(pool):
        inside = allocator.malloc(5 * MIB, stream)
    outside = allocator.malloc(5 * MIB, stream)
    assert len(_segments(rig, pool)) == 1
    said = {e.address: e.pool for e in allocator.history() if e.action == "alloc"}
    assert said == {inside: pool, outside: DEFAULT_POOL}
    allocator.free(inside)
    allocator.release_pool(pool)


def test_a_cache_is_emptied_with_pools_that_are_over(either):
    """G test_mempool_empty_cache: an empty cache holds nothing of released pools."""
    allocator, stream = either.allocator, either.stream()
    for _ in range(3):
        pool = allocator.create_pool()
        with allocator.using(pool):
            address = allocator.malloc(MIB, stream)
        allocator.release_pool(pool)
        allocator.empty_cache()
        assert _segments(either, pool), "a block of it is held"
        allocator.free(address)
        allocator.empty_cache()
        assert _pool(either, pool) is None
    assert either.atlas.used() == 0


def test_a_source_gets_back_what_nobody_holds(classic):
    """G test_mempool_empty_cache_inactive: only when the last block of it is freed."""
    allocator, stream = classic.allocator, classic.stream()
    source = Source(classic)
    pool = allocator.create_pool(source=source)
    with allocator.using(pool):
        address = allocator.malloc(MIB, stream)
    allocator.release_pool(pool)
    allocator.empty_cache()
    assert source.gone == []
    allocator.free(address)
    allocator.empty_cache()
    assert source.held == {}
    assert len(source.gone) == 1


def test_a_source_serves_segments_which_are_split(rig):
    """G test_mempool_with_allocator: two blocks share one, the third opens another."""
    allocator, stream = rig.allocator, rig.stream()
    source = Source(rig)
    pool = allocator.create_pool(source=source)
    assert _pool(rig, pool).use_count == 1
    held = []
    with allocator.using(pool):
        assert _pool(rig, pool).use_count == 2
        for expected in (1, 1, 2):
            held.append(allocator.malloc(MIB, stream))
            assert len(source.held) == expected
    # The use that routing took ends with it.
    assert _pool(rig, pool).use_count == 1
    for address in held:
        allocator.free(address)
    allocator.release_pool(pool)
    allocator.empty_cache()
    assert source.held == {}


def test_a_source_lives_as_long_as_its_blocks(rig):
    """G test_tensor_delete_after_allocator_delete: blocks keep what they came from."""
    import gc
    import weakref

    allocator, stream = rig.allocator, rig.stream()
    source = Source(rig)
    seen, gone = weakref.ref(source), source.gone
    pool = allocator.create_pool(source=source)
    with allocator.using(pool):
        address = allocator.malloc(MIB, stream)
    allocator.release_pool(pool)
    del source
    gc.collect()
    assert seen() is not None
    allocator.free(address)
    allocator.empty_cache()
    gc.collect()
    assert len(gone) == 1
    assert seen() is None


@pytest.mark.parametrize("opted_in", [True, False])
def test_out_of_memory_falls_back_on_pools_that_offer(make_rig, opted_in):
    """G test_mempool_limited_memory_with_allocator: and on their free blocks only."""
    rig = make_rig(total=64 * MIB)
    allocator, stream = rig.allocator, rig.stream()
    pool = allocator.create_pool(use_on_oom=opted_in)
    with allocator.using(pool):
        address = allocator.malloc(40 * MIB, stream)
    allocator.free(address)
    if opted_in:
        assert allocator.malloc(40 * MIB, stream) == address
        assert rig.atlas.used() == 40 * MIB, "the pool has grown"
        allocator.free(address)
    else:
        with pytest.raises(OutOfMemory):
            allocator.malloc(40 * MIB, stream)
    allocator.release_pool(pool)
    allocator.empty_cache()
    assert rig.atlas.used() == 0


def test_whole_segments_where_nothing_is_split(either):
    """G test_mempool_no_split: one block each, so more segments than in other pools."""
    allocator, stream = either.allocator, either.stream()
    whole, split = allocator.create_pool(no_split=True), allocator.create_pool()
    held = []
    for pool in (whole, split):
        with allocator.using(pool):
            held += [allocator.malloc(MIB, stream) for _ in range(4)]
    assert len(_segments(either, whole)) == 4
    assert len(_segments(either, split)) < 4
    for address in held:
        allocator.free(address)
    for pool in (whole, split):
        allocator.release_pool(pool)


def test_pools_that_are_over_are_no_last_resort(make_rig):
    """G test_deleted_mempool_not_used_on_oom: ten rounds of pools that come and go."""
    rig = make_rig(total=48 * MIB)
    allocator, stream = rig.allocator, rig.stream()
    for _ in range(10):
        pool = allocator.create_pool(use_on_oom=True)
        with allocator.using(pool):
            held = allocator.malloc(30 * MIB, stream)
        allocator.free(held)
        allocator.release_pool(pool)
        # Its cache goes back, as anybody's does that is over.
        again = allocator.malloc(40 * MIB, stream)
        assert _segments(rig, pool) == []
        allocator.free(again)
        allocator.empty_cache()


def test_emptying_inside_a_pool_touches_no_other(either):
    """G test_mempool_emptycache_multithread: caches in use stay where they are."""
    allocator, stream = either.allocator, either.stream()

    def round_(_):
        pool = allocator.create_pool()
        with allocator.using(pool):
            allocator.free(allocator.malloc(MIB, stream))
            allocator.empty_cache()
            kept = len(_segments(either, pool))
        allocator.release_pool(pool)
        return kept

    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(round_, range(4))) == [1] * 4


def test_routes_nest(rig):
    """G test_nested_mempool: the innermost pool serves, then the outer one again."""
    allocator, stream = rig.allocator, rig.stream()
    outer, inner = (allocator.create_pool(no_split=True) for _ in range(2))
    held = []
    with allocator.using(outer):
        held.append(allocator.malloc(MIB, stream))
        with allocator.using(inner):
            held += [allocator.malloc(MIB, stream) for _ in range(2)]
        held.append(allocator.malloc(MIB, stream))
    held.append(allocator.malloc(MIB, stream))
    counts = [len(_segments(rig, pool)) for pool in (outer, inner, DEFAULT_POOL)]
    assert counts == [2, 2, 1]
    for address in held:
        allocator.free(address)
    for pool in (outer, inner):
        allocator.release_pool(pool)


def test_a_source_s_pool_is_classic(rig):
    """G test_mempool_expandable: segments of a source do not grow, others do."""
    allocator, stream = rig.allocator, rig.stream()
    pool = allocator.create_pool(source=Source(rig))
    with allocator.using(pool):
        inside = allocator.malloc(MIB, stream)
    outside = allocator.malloc(MIB, stream)
    assert [s.expandable for s in _segments(rig, pool)] == [False]
    assert [s.expandable for s in _segments(rig, DEFAULT_POOL)] == [True]
    for address in (inside, outside):
        allocator.free(address)
    allocator.release_pool(pool)


def test_other_threads_are_not_routed(rig):
    """G test_mempool_ctx_multithread: a route is the thread's that began it."""
    allocator, stream = rig.allocator, rig.stream()
    pool = allocator.create_pool()
    with allocator.using(pool):
        _in_thread(lambda: allocator.malloc(MIB, stream))
        assert _segments(rig, pool) == []
        assert len(_segments(rig, DEFAULT_POOL)) == 1
    allocator.release_pool(pool)


def test_routes_end_in_the_order_of_their_beginning(rig):
    """G test_nested_mempool: what began last ends first; else it is said by name."""
    allocator = rig.allocator
    first, second = allocator.create_pool(), allocator.create_pool()
    with pytest.raises(MisuseError):
        allocator.end(first)
    allocator.begin(first)
    allocator.begin(second)
    allocator.end(second)
    allocator.end(first)
    with pytest.raises(MisuseError):
        allocator.end(first)
    for pool in (first, second):
        allocator.release_pool(pool)
        with pytest.raises(MisuseError):
            allocator.begin(pool)


def test_a_picture_without_history_has_the_same_blocks(rig):
    """G test_snapshot_include_traces: what is recorded is no part of the totals."""
    allocator, stream = rig.allocator, rig.stream()
    held = [allocator.malloc(size, stream) for size in (100, 3 * MIB, MIB)]
    allocator.free(held.pop())
    plain = allocator.picture()
    assert plain.history == ()
    allocator.record_history("all")
    allocator.free(allocator.malloc(64, stream))
    recorded = allocator.picture()
    assert len(recorded.history) >= 2
    assert recorded.segments == plain.segments


def test_totals_are_sums_of_segments(rig):
    """G test_snapshot_include_traces_correctness: counters and picture agree."""
    allocator, stream = rig.allocator, rig.stream()
    held = [allocator.malloc(size, stream) for size in (100, 3 * MIB, MIB, 9 * MIB)]
    for address in held[::2]:
        allocator.free(address)
        rig.check()
