"""Addresses of a range that somebody else allocates from while he captures."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.errors import OutOfMemory
from sapwood.memory.range import HALF, Range
from sapwood.memory.snapshot import snapshot
from sapwood.memory.validate import validate
from sapwood.units import Addr, Size


@settings(max_examples=20)
@given(pages=st.integers(1, 200), data=st.data())
def test_lent_addresses_are_backed_by_little_and_kept_by_need(
    open_bench, page, pages, data
):
    """All that is lent is mapped, on a sixteenth of it; what is used stays."""
    with open_bench("earliest") as bench:
        _lent_and_kept(bench, page, pages, data)


def _lent_and_kept(bench, page, pages, data):
    device, range_ = bench.device, Range.reserve(bench.device.pages)
    base, size = range_.lend(Size(pages * page - 1))
    assert base == range_.base + HALF
    assert size >= pages * page - 1
    assert device.pages.mapped() <= max(1, pages // 16)
    used = data.draw(st.sets(st.integers(0, min(pages, 40) - 1)))
    range_.keep([(Addr(base + i * page), Addr(base + i * page + 1)) for i in used])
    assert range_.size() == len(used) == device.pages.mapped()
    assert validate(snapshot(device, {"range": range_})) == []
    range_.place(set(), ())
    range_.close()


def test_an_extent_that_is_there_is_lent_again(bench, page):
    """Backing what is captured next makes no memory where some lies idle."""
    first, second = (Range.reserve(bench.device.pages) for _ in range(2))
    base, _ = first.lend(Size(32 * page))
    first.keep([(base, Addr(base + 32 * page))])
    before = bench.device.pages.mapped()
    second.lend(Size(32 * page))
    assert bench.device.pages.mapped() == before
    second.close()
    assert bench.device.pages.mapped() == before
    first.close()


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
    known[0] = False
    range_.close()
    assert range_ not in pages.lingering


def test_too_much_is_out_of_memory(make_bench):
    """Where there is no memory to lend, nothing is lent."""
    bench = make_bench()
    range_ = Range.reserve(bench.device.pages)
    with pytest.raises(OutOfMemory):
        range_.lend(Size(1 << 36))
    range_.close()
    assert bench.device.pages.mapped() == 0
