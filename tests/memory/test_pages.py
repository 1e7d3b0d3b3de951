"""The page pool: numbers, limits, leases, and who must be waited for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.driver.emulated import Emulated
from sapwood.errors import DriverError, InternalError, OutOfMemory
from sapwood.memory.pages import Pages, finish, page_numbers
from sapwood.memory.range import Range
from sapwood.units import Mask, Size

numbers = st.sets(st.integers(0, 9))


def _mask(pages):
    return Mask(sum(1 << each for each in pages))


@given(st.sets(st.integers(0, 200)))
def test_a_mask_is_a_set_of_numbers(pages):
    """Its numbers come in order, each once."""
    assert list(page_numbers(_mask(pages))) == sorted(pages)


def test_numbers_are_the_lowest_that_are_free(pages):
    """Extents never share a number, and what is released is used again."""
    first, second, third = (pages.create(n, scratch=True) for n in (2, 4, 1))
    assert [each.mask for each in (first, second, third)] == [0b11, 0b111100, 1 << 6]
    pages.release(second)
    assert [pages.create(n, scratch=False).first for n in (2, 4, 2)] == [2, 7, 4]
    assert pages.mapped() == 11
    assert pages.mapped(scratch=True) == 3
    assert pages.mapped(scratch=False) == 8


def test_an_extent_in_use_is_not_released(pages):
    """Neither one that a range maps, nor one on which a lease holds a page."""
    extent = pages.create(2, scratch=False)
    pages.hold(Mask(0b10))
    with pytest.raises(InternalError, match="nobody uses it"):
        pages.release(extent)
    pages.drop(Mask(0b10))
    extent.ranges = 1
    with pytest.raises(InternalError, match="nobody uses it"):
        pages.release(extent)
    extent.ranges = 0
    pages.release(extent)
    assert pages.driver.memory_info().free == pages.driver.memory_info().total


def test_the_limit_counts_recordings_and_the_heap(make_bench, page):
    """What is asked beyond it is out of memory, and the error says who holds what."""
    pages = make_bench(limit=8).device.pages
    pages.holders = lambda: (("somebody", 5 * page),)
    extent = pages.create(4, scratch=True)
    pages.heap = 1
    with pytest.raises(OutOfMemory, match="somebody 20 KiB") as caught:
        pages.create(4, scratch=True)
    assert (caught.value.asked, caught.value.free) == (4 * page, 3 * page)
    pages.heap = 9
    with pytest.raises(OutOfMemory) as caught:
        pages.create(1, scratch=True)
    assert caught.value.free == 0
    pages.heap = 0
    pages.release(extent)


def test_memory_is_reclaimed_until_there_is_enough(bench, page):
    """Each time somebody finds some, the device is asked again; then it is over."""
    pages = bench.device.pages
    held = [pages.create(16, scratch=True) for _ in range(4)]
    asked = []

    def reclaim():
        asked.append(len(held))
        if held:
            pages.release(held.pop())
        return bool(held)

    pages.reclaim = reclaim
    extent = pages.create(32, scratch=True)
    assert asked == [4, 3]
    with pytest.raises(OutOfMemory) as caught:
        pages.create(64, scratch=True)
    assert asked == [4, 3, 2, 1]
    assert caught.value.asked == 64 * page
    assert caught.value.__cause__ is not None
    pages.release(extent)


@given(st.lists(st.tuples(st.booleans(), numbers), max_size=20))
def test_a_page_is_live_while_anybody_holds_it(steps):
    """Holds are counted by page, in any order; one drop too many is a broken law."""
    emulated = Emulated(Size(1 << 20), Size(1 << 16))
    pages = Pages(emulated, None)
    held = []
    for holds, chosen in steps:
        if holds:
            pages.hold(_mask(chosen))
            held.append(chosen)
        elif chosen in held:
            pages.drop(_mask(chosen))
            held.remove(chosen)
        else:
            over = chosen - set().union(*held)
            if over and not chosen - over:
                with pytest.raises(InternalError, match="ends once"):
                    pages.drop(_mask(chosen))
        assert pages.live == _mask(set().union(*held))
    emulated.close()


def test_a_closed_range_goes_when_the_last_lease_does(bench, page):
    """What a lease holds stays mapped meanwhile, and only that."""
    device = bench.device
    range_, spans = _recorded(bench, (page, page))
    lone, shared = (range_.mask_of(lo, hi) for lo, hi in spans)
    device.pages.hold(Mask(lone | shared))
    device.pages.hold(shared)
    range_.close()
    assert range_.mask == lone | shared
    device.pages.drop(Mask(lone | shared))
    assert range_.mask == shared
    assert list(device.pages.lingering) == [range_]
    device.pages.drop(shared)
    assert not device.pages.lingering
    assert not device.pages.extents


def test_who_claims_pages_is_ordered_after_all_who_use_them(bench, page):
    """Work queued on any stream is done first, however the streams are run."""
    device = bench.device
    range_, ((lo, hi),) = _recorded(bench, (page,))
    streams = [device.default, *(device.new_stream() for _ in range(2))]
    mask = range_.mask_of(lo, hi)
    for value, stream in enumerate(streams):
        device.pages.claim(stream, mask)
        bench.recorded.set(lo, value, page, stream.handle)
    for stream in reversed(streams):
        stream.synchronize()
    found = bench.recorded.download(lo, page, device.default.handle)
    assert set(found) == {len(streams) - 1}
    range_.close()


def test_who_claims_waits_for_each_stream_once(bench):
    """Claiming again costs no wait, and other pages none either."""
    device, other = bench.device, bench.device.new_stream()
    device.pages.used((device.default, other), Mask(0b0110))
    device.pages.used((other,), Mask(0))
    bench.recorded.reset()
    for mask in (0b1000, 0b0010, 0b0010, 0b0110):
        device.pages.claim(device.default, Mask(mask))
    assert bench.recorded.counts()["wait_event"] == 2
    device.pages.settle(Mask(-1))


def test_settling_waits_for_those_who_use_the_pages(bench):
    """And for nobody else; a page that was settled is used no more."""
    device, other = bench.device, bench.device.new_stream()
    done = []
    device.pages.used((device.default,), Mask(0b01))
    device.pages.used((other,), Mask(0b10))
    bench.recorded.call_host(lambda: done.append("mine"), device.default.handle)
    device.pages.settle(Mask(0b01))
    assert done == ["mine"]
    bench.recorded.reset()
    device.pages.settle(Mask(0b01))
    assert not bench.recorded.counts()
    device.pages.settle(Mask(0b10))
    assert bench.recorded.counts()["synchronize_stream"] == 1


def test_a_wait_that_fails_is_made_again_and_reported(bench):
    """Memory that goes away after `finish` is used by nobody, whatever it raised."""
    done = []
    stream = bench.device.default
    bench.recorded.call_host(lambda: done.append(1), stream.handle)
    bench.faulty.position, bench.faulty.plan = 0, {0}
    with pytest.raises(DriverError, match="on purpose"):
        finish(stream)
    assert done == [1]


def _recorded(bench, sizes):
    """Return a range with one output of each size on pages of its own."""
    device = bench.device
    range_ = Range.reserve(device.pages)
    storages = [
        range_.allocate(size, device.default, device.returns, line=None, stays=True)
        for size in sizes
    ]
    spans = [(each.address, each.address + each.size) for each in storages]
    range_.place(range_.page_indices(spans), ())
    return range_, spans
