"""A state machine: the memory map against a model of it, contents included."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from sapwood.driver.api import Access
from sapwood.driver.emulated import POISON, Emulated
from sapwood.driver.layers import Checked
from sapwood.errors import DriverError, OutOfMemory

PAGE = 1 << 16
SLOTS = 6
TOTAL = 8 * PAGE


class MemoryMap(RuleBasedStateMachine):
    """Extents hold one byte per page in the model; mappings are ``slot: extent``."""

    @initialize(schedule=st.sampled_from(["earliest", "latest", "random:7"]))
    def begin(self, schedule):
        self.below = Emulated(TOTAL, PAGE, schedule)
        self.driver = Checked(self.below)
        self.stream = self.driver.create_stream()
        self.base = self.driver.reserve(SLOTS * PAGE)
        self.bytes = {}  # extent: its byte in each page
        self.held = []  # extents whose handle is not released
        self.mapped = {}  # first slot: (extent, access)

    def _used(self):
        needed = {*self.held, *(extent for extent, _ in self.mapped.values())}
        return PAGE * sum(len(self.bytes[extent]) for extent in needed)

    def _slots(self):
        return {
            first + page: (extent, page, access)
            for first, (extent, access) in self.mapped.items()
            for page in range(len(self.bytes[extent]))
        }

    def _at(self, slot):
        return self.base + slot * PAGE

    @rule(pages=st.integers(1, 3))
    def create(self, pages):
        try:
            extent = self.driver.create(pages * PAGE)
        except OutOfMemory:
            assert self._used() + pages * PAGE > TOTAL
        else:
            self.bytes[extent] = [POISON] * pages
            self.held.append(extent)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        extent = data.draw(st.sampled_from(self.held))
        self.driver.release(extent)
        self.held.remove(extent)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), slot=st.integers(0, SLOTS - 1))
    def map(self, data, slot):
        extent = data.draw(st.sampled_from(self.held))
        wanted = range(slot, slot + len(self.bytes[extent]))
        fits = wanted.stop <= SLOTS and not set(wanted) & set(self._slots())
        for driver in (self.driver,) if fits else (self.driver, self.below):
            try:
                driver.map(self._at(slot), extent)
            except DriverError:
                assert not fits
            else:
                assert fits
                self.mapped[slot] = extent, Access.NONE

    @precondition(lambda self: self.mapped)
    @rule(data=st.data(), access=st.sampled_from(Access))
    def set_access(self, data, access):
        slot = data.draw(st.sampled_from(sorted(self.mapped)))
        extent, _ = self.mapped[slot]
        size = PAGE * len(self.bytes[extent])
        self.driver.set_access(self._at(slot), size, access)
        self.mapped[slot] = extent, access

    @precondition(lambda self: self.mapped)
    @rule(data=st.data())
    def unmap(self, data):
        slot = data.draw(st.sampled_from(sorted(self.mapped)))
        self.driver.synchronize()
        self.driver.unmap(self._at(slot), PAGE * len(self.bytes[self.mapped[slot][0]]))
        del self.mapped[slot]

    @rule(slot=st.integers(0, SLOTS - 1), value=st.integers(0, 255))
    def write(self, slot, value):
        found = self._slots().get(slot)
        if found is None or found[2] is not Access.READ_WRITE:
            self._refused(lambda stream: self.driver.set(self._at(slot), 0, 1, stream))
            return
        self.driver.set(self._at(slot), value, PAGE, self.stream)
        self.driver.synchronize_stream(self.stream)  # access may change next
        self.bytes[found[0]][found[1]] = value

    def _refused(self, work):
        stream = self.driver.create_stream()
        work(stream)
        with pytest.raises(DriverError, match="ILLEGAL_ADDRESS"):
            self.driver.synchronize_stream(stream)
        self.driver.destroy_stream(stream)

    @invariant()
    def memory_is_counted(self):
        assert self.driver.memory_info().free == TOTAL - self._used()

    @invariant()
    def contents_are_as_written(self):
        for slot, (extent, page, access) in self._slots().items():
            if access is not Access.NONE:
                data = self.driver.download(self._at(slot), PAGE, self.stream)
                assert data == bytes([self.bytes[extent][page]]) * PAGE

    def teardown(self):
        if not hasattr(self, "driver"):
            return
        for slot, (extent, _) in self.mapped.items():
            self.driver.unmap(self._at(slot), PAGE * len(self.bytes[extent]))
        for extent in self.held:
            self.driver.release(extent)
        self.driver.unreserve(self.base, SLOTS * PAGE)
        self.driver.destroy_stream(self.stream)
        assert self.driver.leaks() == {}
        assert not any(self.below.live_handles().values())
        assert self.below.memory_info().free == TOTAL
        self.below.close()


MemoryMap.TestCase.settings = settings(stateful_step_count=25)
TestMemoryMap = MemoryMap.TestCase
