"""Who holds outputs: pages are live while a lease on them lasts, and it ends once."""

from __future__ import annotations

import gc
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from sapwood.allocator.caching.allocator import Allocator
from sapwood.driver.emulated import Emulated
from sapwood.driver.layers import Checked, Recorded
from sapwood.errors import StaleOutput
from sapwood.memory.device import Device
from sapwood.memory.pages import page_numbers
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.tree.node.leases import Lease, Leases

PAGE = 1 << 16


@pytest.fixture
def driver():
    """Return a device on which nothing may be left."""
    checked = Checked(Emulated(16 * PAGE, PAGE, "latest"))
    yield Recorded(checked)
    assert checked.leaks() == {}
    checked.close()


@pytest.fixture
def device(driver):
    """Return memory on it, closed at the end."""
    device = Device(driver, Allocator)
    yield device
    device.close()


@pytest.fixture
def leases(device):
    """Return the leases on its pages."""
    return Leases(device.pages)


def _range(device, candidates=()):
    """Return a range of two pages, and where its output begins: the second."""
    range_ = Range.reserve(device.pages)
    for stays in (False, True):
        held = range_.allocate(
            PAGE, device.default, device.returns, line=None, stays=stays
        )
    at = held.address
    range_.place(range_.page_indices([(at, at + PAGE)]), candidates)
    return range_, at


def _output(leases, device, range_, at):
    lease = Lease(leases, range_, range_.mask_of(at, at + PAGE))
    storage = Storage(at, PAGE, lease, device.returns)
    leases.begin(lease, storage)
    return storage


def test_an_output_is_live_until_it_is_dropped(device, leases):
    """Its own page, and no other of the range."""
    range_, at = _range(device)
    output = _output(leases, device, range_, at)
    assert device.pages.live == range_.mask_of(at, at + PAGE)
    assert len(leases) == 1
    del output
    device.returns.drain()
    assert device.pages.live == 0
    assert len(leases) == 0
    range_.close()


def test_a_revoked_output_is_stale_and_ends_once(device, leases):
    """Its pages are free at once, and dropping it later changes nothing."""
    range_, at = _range(device)
    first = _output(leases, device, range_, at)
    leases.revoke("a later step() began", ())
    assert device.pages.live == 0
    with pytest.raises(StaleOutput, match="later step"):
        first.check()
    second = _output(leases, device, range_, at)
    del first
    device.returns.drain()
    assert device.pages.live == range_.mask_of(at, at + PAGE)
    del second
    range_.close()


def test_a_lease_that_an_interrupt_kept_from_beginning_never_ends(
    device, leases, monkeypatch
):
    """Dropping the output then ends no lease of others, and is no error."""
    range_, at = _range(device)

    def interrupt(_mask):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(device.pages, "hold", interrupt)
        with pytest.raises(KeyboardInterrupt):
            _output(leases, device, range_, at)
    gc.collect()
    device.returns.drain()
    assert len(leases) == 0
    assert device.pages.live == 0
    range_.close()


def test_what_is_kept_is_not_revoked(device, leases, make_storage):
    """Neither on pages nor in ordinary memory; all the others are."""
    range_, at = _range(device)
    loose = [make_storage(0x1000), make_storage(0x2000)]
    for storage in loose:
        leases.begin_loose(storage)
    outputs = [_output(leases, device, range_, at) for _ in range(2)]
    leases.revoke("it is over", {outputs[0], loose[1]})
    assert [s.stale for s in (*outputs, *loose)] == [
        None,
        "it is over",
        "it is over",
        None,
    ]
    assert device.pages.live
    outputs.clear()
    range_.close()


def test_whoever_comes_next_waits_for_readers(device, driver, leases):
    """Those who read an output are remembered when it is gone."""
    range_, at = _range(device)
    side = device.new_stream()
    output = _output(leases, device, range_, at)
    output.readers = (side,)
    mask = range_.mask_of(at, at + PAGE)
    del output
    device.returns.drain()
    driver.reset()
    device.pages.claim(device.default, mask)
    assert driver.counts()["wait_event"] == 1
    range_.close()


@pytest.mark.parametrize("order", ["held first", "closed first"])
def test_pages_go_with_the_last_lease(device, leases, order):
    """A closed range keeps what is held, and where two ranges share it, no more."""
    range_, at = _range(device)
    other, _ = _range(device, range_.output_extents())
    assert other.mask & range_.mask_of(at, at + PAGE)
    output = _output(leases, device, range_, at)
    if order == "closed first":
        other.close()
        range_.close()
        assert [extent.mask for _, extent in range_.mappings()] == [device.pages.live]
        del output
        device.returns.drain()
    else:
        other.close()
        del output
        device.returns.drain()
        range_.close()
    assert not device.pages.extents
    assert not other.mappings()


class Holding(RuleBasedStateMachine):
    """Outputs begun, dropped and revoked in any order; liveness is their union."""

    @initialize()
    def begin(self):
        self.below = Checked(Emulated(16 * PAGE, PAGE))
        self.device = Device(self.below, Allocator)
        self.leases = Leases(self.device.pages)
        self.ranges = [_range(self.device)]
        self.ranges.append(_range(self.device, self.ranges[0][0].output_extents()))
        self.held = []

    @rule(which=st.integers(0, 1))
    def hold(self, which):
        range_, at = self.ranges[which]
        if not range_.closed:
            self.held.append(_output(self.leases, self.device, range_, at))

    @precondition(lambda self: self.held)
    @rule(place=st.integers(0, 9))
    def drop(self, place):
        del self.held[place % len(self.held)]

    @precondition(lambda self: self.held)
    @rule(place=st.integers(0, 9))
    def revoke_one(self, place):
        self.leases.revoke_one(self.held[place % len(self.held)], "revoked")

    @rule(keep=st.sets(st.integers(0, 9)))
    def revoke(self, keep):
        kept = {s for i, s in enumerate(self.held) if i in keep}
        self.leases.revoke("revoked", kept)
        assert all(s in kept or s.stale for s in self.held)

    @rule(which=st.integers(0, 1))
    def close(self, which):
        self.ranges[which][0].close()

    @invariant()
    def live_pages_are_those_held(self):
        self.device.returns.drain()
        masks = Counter(s.token.mask for s in self.held if s.stale is None)
        live = {n for mask in masks for n in page_numbers(mask)}
        assert set(page_numbers(self.device.pages.live)) == live
        assert len(self.leases) == masks.total()

    @invariant()
    def held_outputs_stay_mapped(self):
        for storage in self.held:
            if storage.stale is None:
                assert storage.token.range.mask & storage.token.mask

    def teardown(self):
        if hasattr(self, "below"):
            self.held.clear()
            for range_, _ in self.ranges:
                range_.close()
            self.device.close()
            assert self.below.leaks() == {}
            self.below.close()


TestHolding = Holding.TestCase
