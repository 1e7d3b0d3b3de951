"""Addresses of a range that somebody else allocates from while he captures."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.driver.release import Release
from sapwood.errors import OutOfMemory
from sapwood.memory.fold import Life
from sapwood.memory.range import HALF, Range
from sapwood.memory.snapshot import snapshot
from sapwood.memory.validate import validate
from sapwood.units import Addr, Size


@settings(max_examples=20)
@given(pages=st.integers(1, 200), data=st.data())
def test_lent_addresses_are_backed_by_little_and_kept_by_need(
    open_bench, page, pages, data
):
    """All that is lent is mapped, on less than twice that; what is used stays."""
    with open_bench("earliest") as bench:
        _lent_and_kept(bench, page, pages, data)


@settings(max_examples=20)
@given(pages=st.integers(1, 200), data=st.data())
def test_where_memory_is_scarce_a_sixteenth_backs_what_is_lent(
    open_bench, page, pages, data
):
    """What would be quicker to map is not worth what somebody else has."""
    limit = data.draw(st.integers(max(1, pages // 16), pages))
    with open_bench("earliest", limit=limit) as bench:
        reclaimed = []
        bench.device.pages.reclaim = lambda: reclaimed.append(True)
        range_ = Range.reserve(bench.device.pages)
        _, size = range_.lend(Size(pages * page))
        assert size >= pages * page
        assert not reclaimed
        range_.close()


def _lent_and_kept(bench, page, pages, data):
    device, range_ = bench.device, Range.reserve(bench.device.pages)
    base, size = range_.lend(Size(pages * page - 1))
    assert base == range_.base + HALF
    assert size >= pages * page - 1
    assert device.pages.mapped() < 2 * pages
    used = data.draw(st.sets(st.integers(0, min(pages, 40) - 1)))
    lives = [_life(base + i * page, 1, 0, None) for i in used]
    range_.fold(lives, set(), ())
    assert range_.size() == len(used) == device.pages.mapped()
    assert validate(snapshot(device, {"range": range_})) == []
    range_.close()


def _life(at, size, born, died):
    return Life(Addr(at), Addr(at + size), born, died)


def test_what_is_alive_in_turn_lies_on_the_same_pages(bench, page):
    """Pages that are never alive at once are one; outputs are apart from scratch."""
    device, range_ = bench.device, Range.reserve(bench.device.pages)
    base, _ = range_.lend(Size(32 * page))
    lives = [
        _life(base, 4 * page, 0, 2),
        _life(base + 4 * page, 4 * page, 2, 4),
        _life(base + 8 * page, 4 * page, 3, None),
    ]
    range_.fold(lives, range_.page_indices([lives[-1][:2]]), ())
    first, second, third = (range_.mask_of(each.lo, each.hi) for each in lives)
    assert (first, first & second) == (third, 0)
    assert range_.mask == second | third
    assert device.pages.mapped(scratch=False) == 4
    assert validate(snapshot(device, {"range": range_})) == []
    device.pages.hold(third)
    range_.close()
    assert validate(snapshot(device, {})) == []
    device.pages.drop(third)
    assert device.pages.mapped() == 0


def test_whatever_fails_nothing_is_left(every_fault):
    """Each driver call of a fold fails once: it is told, and all comes back."""

    def live(bench):
        pages, ranges = bench.device.pages, []
        page = pages.page
        # Too little to lend all at once: nothing that fails is tried otherwise.
        pages.limit = Size(31 * page)
        try:
            for _ in range(2):
                ranges.append(Range.reserve(pages))
                base, _ = ranges[-1].lend(Size(32 * page))
                lives = [_life(base + i * 4 * page, 4 * page, i, i + 2) for i in (0, 2)]
                lives.append(_life(base + 12 * page, 1, 1, None))
                indices = ranges[-1].page_indices([lives[-1][:2]])
                ranges[-1].fold(lives, indices, ranges[0].output_extents())
        finally:
            with Release() as release:
                for range_ in ranges:
                    release(range_.close)

    assert {"create", "map", "set_access", "unmap", "release"} <= set(every_fault(live))


def test_where_lending_much_fails_little_is_lent(every_fault):
    """What is only quicker may fail: that is not told, and all comes back."""

    def live(bench):
        range_ = Range.reserve(bench.device.pages)
        try:
            range_.lend(Size(32 * bench.device.pages.page))
        finally:
            range_.close()

    assert "create" in every_fault(live, "create")


def test_who_is_evicted_meanwhile_lends_nothing(make_bench, page):
    """Extents that go while others are made are made again, not mapped."""
    bench = make_bench(limit=24)
    pages = bench.device.pages
    old, new = Range.reserve(pages), Range.reserve(pages)

    def reclaim():
        found = not old.closed
        old.close()
        return found

    pages.reclaim = reclaim
    for range_, size in ((old, 16), (new, 20)):
        base, _ = range_.lend(Size(page))
        lives = [_life(base, size * page, 0, None)]
        outputs = range_.page_indices([(base, Addr(base + 6 * page))])
        range_.fold(lives, outputs, ())
    assert old.closed
    assert new.size() == pages.mapped() == 20
    assert validate(snapshot(bench.device, {"new": new})) == []
    new.close()


def test_one_piece_is_lent_where_there_is_memory(bench, page):
    """A driver charges by the piece: a larger one than need be is the cheaper one."""
    range_ = Range.reserve(bench.device.pages)
    _, size = range_.lend(Size(33 * page))
    assert (size, bench.device.pages.mapped()) == (64 * page, 64)
    range_.close()
    assert bench.device.pages.mapped() == 0


def test_an_extent_that_is_there_is_lent_again(bench, page):
    """Backing what is captured next makes no memory where some of the size is."""
    first, second = (Range.reserve(bench.device.pages) for _ in range(2))
    first.lend(Size(32 * page))
    for pages in (32, 63):
        second.lend(Size(pages * page))
        assert bench.device.pages.mapped() == 32
        second.fold([], set(), ())
    second.close()
    assert bench.device.pages.mapped() == 32
    first.close()
    assert bench.device.pages.mapped() == 0


def test_what_was_made_to_be_lent_is_the_first_to_go(make_bench, page):
    """Where memory is scarce all at once, less is lent, and nobody loses anything."""
    bench = make_bench(limit=40)
    pages, reclaimed = bench.device.pages, []
    pages.reclaim = lambda: reclaimed.append(True)
    range_ = Range.reserve(pages)
    base, size = range_.lend(Size(63 * page))
    assert pages.mapped() == 32
    stream, returns = bench.device.stream(), bench.device.returns
    held = range_.allocate(Size(20 * page), stream, returns, line=None)
    assert not reclaimed
    assert size >= 63 * page
    assert pages.mapped() < 32
    range_.fold([_life(base + 62 * page, page, 0, None)], set(), ())
    assert pages.mapped() == 20 + 1
    assert validate(snapshot(bench.device, {"range": range_})) == []
    del held
    range_.close()


def test_nothing_stays_on_what_was_made_to_be_lent(bench, page):
    """What is allocated meanwhile has pages of its own, and no more than it takes."""
    range_ = Range.reserve(bench.device.pages)
    base, _ = range_.lend(Size(40 * page))
    stream, returns = bench.device.stream(), bench.device.returns
    held = range_.allocate(Size(3 * page), stream, returns, line=None)
    range_.fold([_life(base, 2 * page, 0, None)], set(), ())
    assert range_.size() == bench.device.pages.mapped() == 3 + 2
    assert validate(snapshot(bench.device, {"range": range_})) == []
    del held
    range_.close()


def test_a_range_that_is_closed_lends_no_more(bench, page):
    """A capture that was abandoned leaves nothing mapped, nor any memory."""
    range_ = Range.reserve(bench.device.pages)
    range_.lend(Size(8 * page))
    range_.close()
    assert bench.device.pages.mapped() == 0


def test_addresses_that_somebody_knows_stay_reserved(bench, page):
    """While an outsider may give them back, they are nobody else's."""
    pages, known = bench.device.pages, [True]
    range_ = Range.reserve(pages)
    range_.outsiders = lambda: known[0]
    base, _ = range_.lend(Size(page))
    range_.close()
    assert range_ in pages.lingering
    assert range_.base <= base
    pages.close_lingering()
    assert range_ in pages.lingering
    known[0] = False
    pages.close_lingering()
    assert range_ not in pages.lingering


@pytest.mark.parametrize("folded", [False, True])
def test_addresses_that_somebody_knows_stay_mapped(bench, page, folded):
    """He may look there, at whatever it is, while little memory is held for that."""
    pages, driver, known = bench.device.pages, bench.device.driver, [True]
    range_ = Range.reserve(pages)
    range_.outsiders = lambda: known[0]
    base, size = range_.lend(Size(64 * page))
    if folded:
        range_.fold([_life(base, size, 0, None)], set(), ())
    range_.close()
    assert pages.mapped() <= (64 if folded else 8)
    stream = bench.device.stream()
    for at in range(base, base + size, page):
        assert len(driver.download(at, Size(8), stream.handle)) == 8
    known[0] = False
    pages.close_lingering()
    assert pages.mapped() == 0
    assert range_ not in pages.lingering


def test_what_stays_mapped_costs_nobody_anything(make_bench, page):
    """Where there is no memory for it, nothing is reclaimed, and nothing is mapped."""
    bench = make_bench(limit=40)
    pages, reclaimed = bench.device.pages, []
    range_ = Range.reserve(pages)
    range_.outsiders = lambda: True
    range_.lend(Size(63 * page))
    pages.limit = Size(0)
    pages.reclaim = lambda: reclaimed.append(True)
    range_.close()
    assert not reclaimed
    assert pages.mapped() == 0
    assert range_ in pages.lingering
    range_.outsiders = bool
    pages.close_lingering()


def test_a_device_that_is_closed_keeps_nothing_mapped(bench, page):
    """Whoever knows addresses keeps them reserved, and no memory."""
    pages = bench.device.pages
    range_ = Range.reserve(pages)
    range_.outsiders = lambda: True
    range_.lend(Size(8 * page))
    range_.close()
    assert pages.mapped() > 0
    pages.ends = True
    pages.close_lingering()
    assert pages.mapped() == 0
    assert range_ in pages.lingering
    range_.outsiders = bool
    pages.close_lingering()


def test_temporaries_that_nobody_tells_of_are_alone(bench, page):
    """Of two on one page one is told of: the page is in use as long as the other."""
    half, pages = Size(page // 2), bench.device.pages
    range_ = Range.reserve(pages)
    stream, returns = bench.device.stream(), bench.device.returns
    told, other = (range_.allocate(half, stream, returns, line=None) for _ in range(2))
    base, _ = range_.lend(Size(page))
    lives = [_life(told.address, half, -1, 1), _life(base, page, 2, 3)]
    range_.fold(lives, set(), ())
    assert range_.size() == 2
    assert (
        range_.mask_of(other.address, Addr(other.address + half))
        & (range_.mask_of(base, Addr(base + page)))
        == 0
    )
    del told, other
    range_.close()


def test_too_much_is_out_of_memory(make_bench):
    """Where there is no memory to lend, nothing is lent."""
    bench = make_bench()
    range_ = Range.reserve(bench.device.pages)
    with pytest.raises(OutOfMemory):
        range_.lend(Size(1 << 36))
    range_.close()
    assert bench.device.pages.mapped() == 0
