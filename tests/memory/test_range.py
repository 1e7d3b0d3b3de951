"""Ranges: what is captured where, what lies on which pages, and what comes back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.driver.release import Release
from sapwood.driver.streams import Stream
from sapwood.errors import OutOfMemory
from sapwood.memory.range import HALF, REACH, Range
from sapwood.memory.snapshot import snapshot
from sapwood.memory.validate import validate
from sapwood.units import Addr, Size

eighths = st.integers(1, 30)
allocations = st.lists(
    st.tuples(eighths, st.booleans(), st.booleans()), min_size=1, max_size=6
)
"""For each: a size in eighths of a page, whether it is guessed to stay, and does."""


def _allocate(bench, range_, size, **how):
    device = bench.device
    return range_.allocate(
        Size(size), device.default, device.returns, line="user.py:1", **how
    )


def _capture(bench, range_, asked):
    """Make allocations, drop some of them, and return the spans of the others."""
    kept = []
    for size, guessed, stays in asked:
        storage = _allocate(
            bench, range_, size * bench.device.pages.page // 8, stays=guessed
        )
        if stays:
            kept.append(storage)
        del storage
        bench.drain()
    return [(each.address, Addr(each.address + each.size)) for each in kept]


def _picture(bench, **ranges):
    picture = snapshot(bench.device, ranges)
    assert validate(picture) == []
    return picture


def test_each_kind_of_allocation_has_a_place_of_its_own(bench, page):
    """Temporaries, what stays, and what comes after capture share no addresses."""
    range_ = Range.reserve(bench.device.pages)
    storages = [
        _allocate(bench, range_, page),
        _allocate(bench, range_, page, stays=True),
        _allocate(bench, range_, page, late=True),
    ]
    offsets = [each.address - range_.base for each in storages]
    assert offsets[:2] == [0, HALF]
    assert not 0 <= offsets[2] < REACH
    assert range_.taken() == [(each.address, page, "user.py:1") for each in storages]
    range_.close()


def test_bytes_freed_in_a_capture_are_used_again_but_not_late(bench, page):
    """What is allocated after the capture may still meet its last work."""
    range_ = Range.reserve(bench.device.pages)
    address = _allocate(bench, range_, page).address
    bench.drain()
    late = _allocate(bench, range_, page, late=True)
    again = _allocate(bench, range_, page)
    assert again.address == address
    assert late.address != address
    range_.close()


def test_bytes_freed_on_a_forked_stream_are_waited_for(bench, page):
    """Inside a capture another stream takes them only after the one that used them."""
    device, other = bench.device, bench.device.new_stream()
    range_ = Range.reserve(device.pages)
    bench.write(_allocate(bench, range_, page), 1, device.default)
    bench.drain()
    taken = range_.allocate(page, other, device.returns, line=None)
    assert taken.writer is other
    bench.write(taken, 2, other)
    other.synchronize()
    device.default.synchronize()
    assert bench.read(taken, other) == 2
    del taken
    bench.drain()
    bench.recorded.reset()
    assert range_.allocate(page, other, device.returns, line=None).writer is other
    assert "wait_event" not in bench.recorded.counts()
    range_.close()


@settings(max_examples=40)
@given(st.lists(allocations, min_size=1, max_size=3), st.booleans())
def test_placed_pages_are_what_they_hold(open_bench, asked, shared):
    """Pages of outputs are no scratch, all others are; and all comes back at the end.

    Recordings share scratch; they share output pages only where they were allowed to.
    """
    with open_bench(pages=512) as bench:
        before = _picture(bench)
        ranges = {}
        for number, each in enumerate(asked):
            range_ = ranges[str(number)] = Range.reserve(bench.device.pages)
            spans = _capture(bench, range_, each)
            others = {e: None for r in ranges.values() for e in r.output_extents()}
            outputs = range_.page_indices(spans)
            range_.place(outputs, others if shared else ())
            _picture(bench, **ranges)
            _check_places(bench.device.pages, range_, outputs, spans)
        masks = [_output_mask(each) for each in ranges.values()]
        if not shared:
            assert sum(each.bit_count() for each in masks) == bench.device.pages.mapped(
                scratch=False
            )
        for range_ in ranges.values():
            range_.close()
        assert _picture(bench) == before
        assert bench.free_pages() == 512


def _output_mask(range_):
    mask = 0
    for extent in range_.output_extents():
        mask |= extent.mask
    return mask


def _check_places(pages, range_, outputs, spans):
    size = 0
    for address, extent in range_.mappings():
        first = (address - range_.base) // pages.page
        held = set(range(first, first + extent.pages))
        assert held <= outputs if not extent.scratch else held.isdisjoint(outputs)
        size += extent.pages
    assert range_.size() == size == range_.mask.bit_count()
    mask = 0
    for span in spans:
        mask |= range_.mask_of(*span)
    assert mask == _output_mask(range_)


@pytest.mark.parametrize("scratch", [True, False])
def test_one_recording_at_a_time_needs_scratch(bench, scratch):
    """A second range of the same shape costs nothing where the first gave its pages."""
    ranges = []
    for _ in range(2):
        range_ = Range.reserve(bench.device.pages)
        spans = _capture(bench, range_, [(40, False, not scratch)])
        shared = ranges[0].output_extents() if ranges else ()
        range_.place(range_.page_indices(spans), shared)
        ranges.append(range_)
    assert bench.free_pages() == 64 - 5
    for range_ in ranges:
        range_.close()


def test_pages_are_backed_where_others_captured(bench, page):
    """A range in which nothing was captured takes pages at the indices asked for."""
    range_ = Range.reserve(bench.device.pages)
    range_.back({0, 1, 2, 9})
    found = [
        (address - range_.base) // page + i
        for address, extent in range_.mappings()
        for i in range(extent.pages)
    ]
    assert found == [0, 1, 2, 9]
    range_.close()


@settings(max_examples=40)
@given(st.sets(st.integers(0, 20)), st.data())
def test_a_mask_is_of_the_pages_that_bytes_touch(open_bench, page, indices, data):
    """As many of them as are mapped, each by the number that it has there."""
    with open_bench() as bench:
        range_ = Range.reserve(bench.device.pages)
        range_.back(indices)
        numbers = {
            (address - range_.base) // page + i: extent.first + i
            for address, extent in range_.mappings()
            for i in range(extent.pages)
        }
        lo = data.draw(st.integers(0, 21 * page))
        hi = data.draw(st.integers(lo, 22 * page))
        touched = {i for i in range(22) if i * page < hi and lo < (i + 1) * page}
        span = Addr(range_.base + lo), Addr(range_.base + hi)
        assert range_.page_indices([span]) == touched
        mask = sum(1 << numbers[i] for i in touched & numbers.keys())
        assert range_.mask_of(*span) == mask
        range_.close()


def test_adjacent_pages_are_opened_at_once(bench):
    """Whatever they are mapped in, and whether they hold outputs or not."""
    range_ = Range.reserve(bench.device.pages)
    bench.recorded.reset()
    range_.back({*range(40), 50})
    assert bench.recorded.counts()["set_access"] == 2
    assert range_.mappings()[0][1].pages == 2
    bench.recorded.reset()
    range_.place({1, 2}, ())
    assert bench.recorded.counts()["map"] == 3
    assert bench.recorded.counts()["set_access"] == 1
    _picture(bench, range=range_)
    range_.close()


def test_a_closed_range_keeps_only_what_is_live(bench):
    """The rest is unmapped at once, the addresses with the last page."""
    pages = bench.device.pages
    range_ = Range.reserve(pages)
    spans = _capture(bench, range_, [(8, False, False), (8, True, True)])
    range_.place(range_.page_indices(spans), ())
    mask = range_.mask_of(*spans[0])
    pages.hold(mask)
    range_.close()
    assert (range_.mask, range_.closed, bool(range_.spans())) == (mask, True, True)
    _picture(bench)
    pages.drop(mask)
    assert (range_.mask, range_.spans()) == (0, [])
    range_.close()
    assert bench.free_pages() == 64


def test_unmapping_waits_for_work_on_the_pages(bench, page):
    """A range that is closed with work queued loses no work and breaks none."""
    pages, stream = bench.device.pages, bench.device.default
    range_ = Range.reserve(pages)
    storage = _allocate(bench, range_, page)
    pages.claim(stream, range_.mask)
    bench.write(storage, 1, stream)
    range_.close()
    stream.synchronize()


def test_a_range_that_finds_no_memory_gives_all_of_it_back(make_bench, page):
    """Pages made for what then did not fit are no longer counted anywhere."""
    bench = make_bench(limit=20)
    range_ = Range.reserve(bench.device.pages)
    storage = _allocate(bench, range_, 3 * page)
    with pytest.raises(OutOfMemory):
        _allocate(bench, range_, 30 * page)
    assert bench.device.pages.mapped() == 3
    del storage
    range_.close()


def test_who_is_evicted_meanwhile_lends_nothing(make_bench):
    """Scratch that goes while more is made is made again, not mapped."""
    bench = make_bench(limit=24)
    pages = bench.device.pages
    old, new = Range.reserve(pages), Range.reserve(pages)
    spans = _capture(bench, old, [(8 * 12, False, False), (8 * 6, True, True)])
    old.place(old.page_indices(spans), ())

    def reclaim():
        found = not old.closed
        old.close()
        return found

    pages.reclaim = reclaim
    _capture(bench, new, [(8 * 19, True, False)])
    assert old.closed
    assert new.size() == pages.mapped() == 19
    _picture(bench, new=new)
    new.close()


def test_whatever_fails_nothing_is_left(every_fault):
    """Each driver call of a range's life fails once: it is told, and all comes back."""

    def live(bench):
        device, page = bench.device, bench.device.pages.page
        handle = bench.checked.create_stream()
        other = Stream(device.driver, handle, "o", device.returns)
        ranges = []
        try:
            for _ in range(2):
                ranges.append(Range.reserve(device.pages))
                _allocate(bench, ranges[-1], page).order_write(device.default)
                bench.drain()
                ranges[-1].allocate(page, other, device.returns, line=None)
                bench.drain()
                spans = _capture(
                    bench, ranges[-1], [(50, False, False), (9, True, True)]
                )
                shared = ranges[0].output_extents()
                ranges[-1].place(ranges[-1].page_indices(spans), shared)
        finally:
            with Release() as release:
                for range_ in ranges:
                    release(range_.close)

    assert {"reserve", "create", "map", "set_access", "unmap", "release"} <= set(
        every_fault(live)
    )


def _shared(bench):
    """Yield two ranges that have their scratch in common, and one page of output."""
    for _ in range(2):
        range_ = Range.reserve(bench.device.pages)
        yield range_
        spans = _capture(bench, range_, [(40, False, False), (8, True, True)])
        range_.place(range_.page_indices(spans), ())


def test_what_sleeps_is_nobody_elses(bench, page):
    """Pages that another range maps as well, or that a lease holds, stay."""
    pages = bench.device.pages
    one, other = ranges = [*_shared(bench)]
    mapped = pages.mapped()
    assert pages.sleep([one]) == page
    assert pages.mapped() == mapped - 1
    pages.wake()
    (held,) = other.output_extents()
    pages.hold(held.mask)
    assert pages.sleep(ranges) == (mapped - 1) * page
    assert pages.mapped() == 1
    _picture(bench, one=one, other=other)
    pages.drop(held.mask)
    one.close()
    assert pages.sleep(ranges) == page
    pages.wake()
    assert pages.mapped() == other.size()
    _picture(bench, other=other)
    other.close()
    assert bench.free_pages() == 64


def test_what_cannot_wake_sleeps_on(make_bench, page):
    """Then nothing has changed, and it may wake when there is memory again."""
    bench = make_bench(limit=24)
    pages = bench.device.pages
    ranges = [*_shared(bench)]
    pages.sleep(ranges)
    size = Size(23 * page)
    eager = bench.device.allocate_on_heap(size, bench.device.default)
    for _ in range(2):
        with pytest.raises(OutOfMemory):
            pages.wake()
        assert pages.mapped() == 0
        _picture(bench, one=ranges[0], other=ranges[1])
    del eager
    bench.drain()
    bench.device.heap.trim()
    pages.wake()
    assert pages.mapped() == ranges[0].size() + 1
    for range_ in ranges:
        range_.close()


def test_whatever_fails_in_sleep_nothing_is_left(every_fault):
    """Each driver call of sleep and wake fails once: it is told, and all comes back."""

    def live(bench):
        pages, ranges = bench.device.pages, []
        try:
            ranges.extend(_shared(bench))
            for _ in range(2):
                pages.sleep(ranges)
                pages.wake()
            pages.sleep(ranges)
        finally:
            with Release() as release:
                for range_ in ranges:
                    release(range_.close)

    assert {"create", "map", "set_access", "unmap", "release"} <= set(every_fault(live))
