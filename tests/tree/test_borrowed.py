"""Outputs that somebody reads unseen, on a stream that was named: none is overwritten.

What reads them is a copy that only the driver knows of, as a framework's own kernels
are. Under the *latest* schedule it runs when it is waited for, and no earlier.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

from sapwood import _fast
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Kept
from tests.support.rig import IN_C, INEXACT, VARIANTS, Rig

LENGTH = 64
LATE = ("latest", "random:1", IN_C)
"""Where work that nobody waits for is done late."""


def work(x):
    return x * 2.0 + 1.0


class Beside:
    """A function that is replayed, and a stream on which its results are read."""

    def __init__(self, rig):
        self.rig, self.rt = rig, rig.runtime
        self.device, self.integration = self.rt._device, self.rt._recordings.integration
        self.f, self.side = self.rt.graph(work), self.rt.stream()
        self.given = [self.rt.array(np.full(LENGTH, float(k))) for k in range(3)]
        # Beforehand: whoever allocates has outputs that are kept let go.
        self.rooms = [
            self.device.allocate_on_heap(8 * LENGTH, self.side) for _ in range(12)
        ]
        self.read = []
        self.calls = 0
        self.again(40)

    def call(self):
        """Return the result of the next argument, and what it should be."""
        self.calls += 1
        which = self.calls % len(self.given)
        return self.f(self.given[which]), work(float(which))

    def again(self, times):
        """Call and drop the results."""
        for _ in range(times):
            self.call()

    def lend(self, *, says, views=False):
        """Read a result on the side, drop it, and say so or not."""
        y, value = self.call()
        storage = self.integration.look(y[8:] if views else y).storage
        room = self.rooms.pop()
        self.side.wait(self.device.stream())
        self.rig.recorded.copy(
            room.address, storage.address, storage.size, self.side.handle
        )
        if says:
            storage.use_on(self.side)
        self.read.append((room, value))

    def wrong(self):
        """Return how many of the copies are not of what was returned."""
        self.side.synchronize()
        found = 0
        for room, value in self.read:
            data = self.rig.recorded.download(room.address, room.size, self.side.handle)
            found += not np.all(np.frombuffer(data) == value)
            self.rooms.append(room)
        self.read.clear()
        return found


@pytest.fixture(params=[*VARIANTS, INEXACT, IN_C])
def beside(request):
    if request.param == IN_C and _fast.native() is None:
        pytest.skip("nothing in C here")
    rig = Rig(request.param)
    made = Beside(rig)
    yield made
    made.__dict__.clear()
    gc.collect()
    rig.finish()


@pytest.mark.parametrize("between", [0, 1, 3, 40])
def test_what_is_borrowed_is_read_first(beside, between):
    """However many replays come before the next one that is read."""
    for i in range(12):
        beside.lend(says=True, views=i % 2)
        beside.again(between)
    assert beside.wrong() == 0


def test_what_nobody_says_is_not_waited_for(beside):
    """So the reading that is tested here does come late: what waits is the saying."""
    for _ in range(12):
        beside.lend(says=False)
        beside.again(3)
    assert (beside.wrong() > 0) is (beside.rig.variant in LATE)


def test_what_is_borrowed_outlives_its_runtime(beside):
    """Pages of a runtime that was closed go when all have read."""
    y, value = beside.call()
    storage, room = beside.integration.look(y).storage, beside.rooms.pop()
    beside.rt.close()
    beside.side.wait(beside.device.default)
    copy = beside.rig.recorded.copy
    copy(room.address, storage.address, storage.size, beside.side.handle)
    storage.use_on(beside.side)
    del y, storage
    gc.collect()
    beside.read.append((room, value))
    assert beside.wrong() == 0


def test_c_plays_on(beside):
    """One result that was borrowed is waited for once, and C goes on after it."""
    if beside.rig.lending is None:
        pytest.skip("is about fast replays in C")
    for _ in range(4):
        beside.lend(says=True)
        before = beside.rig.lending.launches
        beside.again(80)
        assert beside.rig.lending.launches > before
    before = beside.rig.lending.launches
    for _ in range(20):
        y, _ = beside.call()
        beside.integration.look(y).storage.use_on(beside.device.stream())
        del y
    assert beside.rig.lending.launches == before + 20, "its own stream is no other"
    assert beside.wrong() == 0


def _kept_whoever_reads(self, stream):
    return all(each.writer is stream and not each.readers for each in self.storages)


def _borrow_unsaid(self, stream):
    self.stream_uses = (*self.stream_uses, stream)


MUTANTS = {
    "uses on streams are no users": (Storage, "users", Storage._ordered),
    "kept whoever reads": (Kept, "is_only", _kept_whoever_reads),
    "fast replays are not told": (Storage, "use_on", _borrow_unsaid),
}


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.deep
def test_mutants_are_caught(name, monkeypatch):
    """On one kind of device at least where work is done late."""
    monkeypatch.setattr(*MUTANTS[name])
    kinds = LATE if _fast.native() else LATE[:-1]
    assert any(_is_wrong(kind) for kind in kinds)


def _is_wrong(kind):
    rig = Rig(kind)
    beside = Beside(rig)
    for i in range(12):
        beside.lend(says=True, views=i % 2)
        beside.again(3)
    found = beside.wrong()
    beside.__dict__.clear()
    gc.collect()
    rig.finish()
    return found > 0
