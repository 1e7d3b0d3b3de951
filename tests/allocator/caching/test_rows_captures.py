"""Table D, as far as it is the allocator's: memory of captures.

Each docstring begins with the row of docs/allocator-rows.md that the test is for.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from sapwood.allocator.caching.picture import DEFAULT_POOL
from sapwood.allocator.caching.settings import DEFAULT
from sapwood.errors import OutOfMemory

MIB = 1 << 20


@contextmanager
def _capturing(rig, pool, stream):
    """Capture a stream, with its allocations in a pool; the graph is dropped."""
    rig.checked.begin_capture(stream)
    rig.allocator.begin(pool, stream=stream)
    try:
        yield
    finally:
        rig.allocator.end(pool)
        rig.checked.destroy_graph(rig.checked.end_capture(stream))


def _segments(rig, pool):
    return [s for s in rig.allocator.picture().segments if s.pool == pool]


def test_out_of_memory_inside_a_capture(make_rig):
    """D test_graph_capture_oom: it is raised as elsewhere, and the capture ends."""
    rig = make_rig(total=32 * MIB)
    allocator, stream = rig.allocator, rig.stream()
    pool = allocator.create_pool(capture=True)
    with _capturing(rig, pool, stream), pytest.raises(OutOfMemory):
        allocator.malloc(64 * MIB, stream)
    allocator.release_pool(pool)
    assert allocator.malloc(16 * MIB, stream)


def test_captures_that_share_a_pool_share_memory(make_rig):
    """D test_graph_two_successive: sharing saves exactly one small segment of 2 MiB."""
    reserved = []
    for sharing in (True, False):
        rig = make_rig()
        allocator, stream = rig.allocator, rig.stream()
        pools = []
        for _ in range(2):
            if not (sharing and pools):
                pools.append(allocator.create_pool(capture=True))
            with _capturing(rig, pools[-1], stream):
                allocator.free(allocator.malloc(700_000, stream))
        reserved.append(allocator.counters().total.reserved_bytes.current)
        for pool in pools:
            allocator.release_pool(pool)
    assert reserved == [2 * MIB, 4 * MIB]


CLASSIC = {
    512: (2 * MIB, "small"),
    MIB: (2 * MIB, "small"),
    MIB + 512: (20 * MIB, "large"),
    10 * MIB - 512: (20 * MIB, "large"),
    10 * MIB + 512: (12 * MIB, "large"),
}


@pytest.mark.parametrize("size", CLASSIC)
def test_what_a_capture_reserves_is_exact(classic, size):
    """D test_graph_memory_stats_and_use_result_after_destroy_graph: to the byte.

    What lives on when the capture is over keeps its segment, and its contents.
    """
    allocator, stream = classic.allocator, classic.stream()
    pool = allocator.create_pool(capture=True)
    before = allocator.counters().total
    with _capturing(classic, pool, stream):
        kept = allocator.malloc(size, stream)
        allocator.free(allocator.malloc(size, stream))
    after = allocator.counters().total
    segment, kind = CLASSIC[size]
    number = 1 if segment >= 2 * size else 2
    assert after.segment.current - before.segment.current == number
    assert (
        after.reserved_bytes.current - before.reserved_bytes.current == number * segment
    )
    assert after.active.current - before.active.current == 1
    assert after.active_bytes.current - before.active_bytes.current == size
    assert {s.size_class for s in _segments(classic, pool)} == {kind}
    classic.fill(kept, size, 9, stream)
    allocator.release_pool(pool)
    allocator.empty_cache()
    assert classic.read(kept, size, stream).count(9) == size
    left = allocator.counters().total
    assert left.reserved_bytes.current - before.reserved_bytes.current == segment
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.counters().total.reserved_bytes == (
        before.reserved_bytes._replace(
            peak=number * segment, allocated=number * segment, freed=number * segment
        )
    )


@pytest.mark.parametrize("size", CLASSIC)
def test_what_a_capture_reserves_of_a_range(make_rig, size):
    """D test_graph_memory_stats_and_use_result_after_destroy_graph: if expandable."""
    rig = make_rig()
    allocator, stream = rig.allocator, rig.stream()
    pool = allocator.create_pool(capture=True)
    with _capturing(rig, pool, stream):
        kept = allocator.malloc(size, stream)
    tally = allocator.counters().total
    assert tally.segment.current == 0
    assert tally.active_bytes.current == size
    assert size <= tally.reserved_bytes.current <= max(20 * MIB, size + 2 * MIB)
    rig.fill(kept, size, 9, stream)
    allocator.release_pool(pool)
    allocator.empty_cache()
    assert rig.read(kept, size, stream).count(9) == size
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.counters().total.reserved_bytes.current == 0


def test_no_event_is_asked_for_while_capturing(either):
    """D test_graph_record_stream: pending frees wait, and recording a use is legal."""
    allocator = either.allocator
    stream, other = either.stream(), either.stream()
    early = allocator.malloc(MIB, stream)
    allocator.record_stream(early, other)
    either.busy.keep(other)
    allocator.free(early)
    pool = allocator.create_pool(capture=True)
    with _capturing(either, pool, stream):
        either.recorded.reset()
        inside = allocator.malloc(3 * MIB, stream)
        either.wait(other, stream)
        allocator.record_stream(inside, other)
        allocator.free(inside)
        again = allocator.malloc(3 * MIB, stream)
        assert again != inside, "what a stream of the capture used is deferred"
        events = [name for name in either.recorded.counts() if "event" in name]
        assert events == []
        either.wait(stream, other)
    either.busy.let_go(other)
    allocator.free(again)
    allocator.release_pool(pool)
    allocator.empty_cache()
    assert either.atlas.used() == 0


def test_side_streams_of_a_capture_use_its_pool(rig):
    """D test_cuda_graph_allocator_propagates_stream: two segments, of one pool."""
    allocator, stream, side = rig.allocator, rig.stream(), rig.stream()
    pool = allocator.create_pool(capture=True)
    rig.checked.begin_capture(stream)
    allocator.begin(pool, stream=stream)
    allocator.begin(pool, stream=side)
    held = [allocator.malloc(MIB, each) for each in (stream, side)]
    allocator.end(pool)
    allocator.end(pool)
    rig.checked.destroy_graph(rig.checked.end_capture(stream))
    assert [s.stream for s in _segments(rig, pool)] == [stream, side]
    assert _segments(rig, DEFAULT_POOL) == []
    for address in held:
        allocator.free(address)
    allocator.release_pool(pool)


def test_other_threads_allocate_during_a_capture(either):
    """D test_cuda_graph_error_options: their memory is the default pool's."""
    allocator = either.allocator
    stream, other = either.stream(), either.stream()
    pool = allocator.create_pool(capture=True)
    with _capturing(either, pool, stream), ThreadPoolExecutor(1) as executor:
        held = executor.submit(allocator.malloc, 3 * MIB, other).result(timeout=30)
    (segment,) = _segments(either, DEFAULT_POOL)
    assert segment.address <= held < segment.address + segment.size
    allocator.release_pool(pool)


def test_uses_from_before_a_capture_are_waited_for(either):
    """D test_graph_capture_pre_capture_stream_use: until that work ends, then not."""
    allocator = either.allocator
    stream, side = either.stream(), either.stream()
    pool = allocator.create_pool(capture=True)
    early = allocator.malloc(3 * MIB, stream)
    allocator.record_stream(early, side)
    either.busy.keep(side)
    with _capturing(either, pool, stream):
        allocator.free(early)
        inside = allocator.malloc(3 * MIB, stream)
    assert allocator.malloc(3 * MIB, stream) != early
    either.busy.let_go(side)
    assert allocator.malloc(3 * MIB, stream) == early
    allocator.free(inside)
    allocator.release_pool(pool)


def test_the_setting_for_reuse_inside_captures_is_accepted(make_rig):
    """The setting is accepted, and changes nothing: blocks wait for the end.

    So they are not reused before all branches have joined, which is what must hold.
    """
    settings = DEFAULT.replace(graph_capture_record_stream_reuse=True)
    rig = make_rig(settings=settings)
    allocator, stream, side = rig.allocator, rig.stream(), rig.stream()
    pool = allocator.create_pool(capture=True)
    with _capturing(rig, pool, stream):
        block = allocator.malloc(3 * MIB, stream)
        rig.wait(side, stream)
        allocator.record_stream(block, side)
        allocator.free(block)
        other = allocator.malloc(3 * MIB, stream)
        assert other != block
        rig.wait(stream, side)
    allocator.free(other)
    allocator.release_pool(pool)
    allocator.empty_cache()
    assert rig.atlas.used() == 0


def test_who_looks_on_a_capture_is_no_part_of_it(either):
    """D test_graph_capture_pre_capture_stream_use: nor is a stream outside of it.

    What it reads of an earlier capture's output is waited for.
    """
    allocator = either.allocator
    stream, reader = either.stream(), either.stream()
    pool = allocator.create_pool(capture=True)
    with _capturing(either, pool, stream):
        output = allocator.malloc(3 * MIB, stream)
    with _capturing(either, pool, stream):
        allocator.record_stream(output, reader)
        either.busy.keep(reader)
        allocator.free(output)
    with _capturing(either, pool, stream):
        again = allocator.malloc(3 * MIB, stream)
        assert again != output
    allocator.free(again)
    either.busy.let_go(reader)
    allocator.release_pool(pool)


def test_what_a_capture_freed_serves_the_next(either):
    """D test_graph_capture_reclaim_shared_pool: the same address, in the same pool."""
    allocator, stream, side = either.allocator, either.stream(), either.stream()
    pool = allocator.create_pool(capture=True)
    with _capturing(either, pool, stream):
        block = allocator.malloc(3 * MIB, stream)
        either.wait(side, stream)
        allocator.record_stream(block, side)
        allocator.free(block)
        either.wait(stream, side)
    with _capturing(either, pool, stream):
        again = allocator.malloc(3 * MIB, stream)
        assert again == block
    allocator.free(again)
    allocator.release_pool(pool)


def test_what_was_captured_stays_where_it_is(either):
    """What a capture used, and freed, serves nobody else: a replay writes there."""
    allocator, stream = either.allocator, either.stream()
    pool = allocator.create_pool(capture=True)
    with _capturing(either, pool, stream):
        allocator.free(allocator.malloc(80 * MIB, stream))
    before = [segment.extents for segment in _segments(either, pool)]
    with pytest.raises(OutOfMemory):
        allocator.malloc(80 * MIB, stream)
    allocator.empty_cache()
    allocator.trim()
    assert [segment.extents for segment in _segments(either, pool)] == before
    allocator.release_pool(pool)
    assert allocator.malloc(80 * MIB, stream)


def test_nobody_is_waited_for_while_capturing(either):
    """Waiting would end a capture: emptying, trimming and running short do not."""
    allocator, stream = either.allocator, either.stream()
    allocator.free(allocator.malloc(60 * MIB, stream))
    pool = allocator.create_pool(capture=True)
    with _capturing(either, pool, stream):
        either.recorded.reset()
        allocator.empty_cache()
        assert allocator.trim() == 0
        with pytest.raises(OutOfMemory):
            allocator.malloc(100 * MIB, stream)
        waits = [name for name in either.recorded.counts() if "synchronize" in name]
        assert waits == []
        assert "unmap" not in either.recorded.counts()
    allocator.release_pool(pool)
