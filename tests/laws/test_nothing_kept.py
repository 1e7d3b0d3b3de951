"""What went wrong keeps no array alive: reference counts free all that callers drop."""

from __future__ import annotations

import contextlib
import gc
import weakref

import numpy as np
import pytest

import sapwood as sw
from sapwood.memory.storage import Storage

PAGE = 1 << 16


@pytest.fixture(autouse=True)
def _no_collections(rig):
    """Only reference counts free memory, while nothing of this test is garbage yet."""
    assert not rig.finished
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def storages():
    """Return what counts the storages that are alive, but those from before.

    Those that a fast replay has for the next one hold no page: they are nobody's.
    """

    def alive():
        found = [each for each in gc.get_objects() if type(each) is Storage]
        return sum(not getattr(each.token, "rests", False) for each in found)

    before = alive()
    return lambda: alive() - before


LOG = []


def _write(y):
    LOG[:] = [*LOG, y.ndim]


def _raise(y):
    raise KeyError(y.shape)


FAULTS = {
    "a host read": lambda y: len(str(y)),
    "host data": lambda y: np.zeros(3, like=y) + np.add(y, np.ones(3)),
    "a Python write": _write,
    "an exception": _raise,
    "another op": lambda y: y * 7,
}


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("tolerant", [True, False])
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_recorded(rt, storages, hidden, fault, late, tolerant):
    """Neither the warm-up or the recording that shows it, nor the calls after it."""
    fails = FAULTS[fault]
    hidden(int(not late))

    def fn(x):
        y = x * 2
        if hidden():
            fails(y)
        return y + 1

    f = rt.graph(fn, fullgraph=not tolerant)
    failed = 0
    for i in range(5):
        hidden(int(not late or i == 1))
        x = rt.array(np.ones(3))
        try:
            f(x)
        except (sw.CaptureError, KeyError, TypeError):
            failed += 1
        del x
        with rt.step():
            pass
        assert storages() == 0, i
    assert failed or tolerant or fault == "another op"


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("fails", range(0, 60, 3))
def test_a_recording_that_the_device_fails(rig, storages, fails):
    """Whichever driver call fails, the arrays go when their names do."""
    rt = rig.runtime
    f = rt.graph(lambda x: x * 2 + 1, fullgraph=fails % 2 == 0)
    for i in range(4):
        x = rt.array(np.ones(3))
        rig.faulty.plan = {rig.faulty.position + fails} if i == 1 else ()
        with contextlib.suppress(sw.DriverError):
            f(x)
        rig.faulty.plan = ()
        del x
        with contextlib.suppress(sw.DriverError):
            rt.synchronize()
        assert storages() == 0, i


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_memory_that_ran_out(make_rig, storages):
    """Neither where eviction found some, nor where an `OutOfMemory` was raised."""
    rt = make_rig(total=40 * PAGE).runtime
    f = rt.graph(lambda x: x * 2 + 1)
    for pages in (1, 2, 3, 4, 5, 30, 2, 60, 3, 5, 1):
        for _ in range(3):
            with contextlib.suppress(sw.OutOfMemory):
                x = rt.array(np.ones(pages * PAGE // 8))
                f(x)
            x = None
            rt.synchronize()
            assert storages() == 0, pages
    assert f.stats().evicted or f.stats().passed_through


@pytest.mark.parametrize("where", ["eager region", "behind it"])
@pytest.mark.parametrize("call", range(4))
def test_an_exception_beside_eager_regions(rt, storages, hidden, where, call):
    """In a warm-up, a recording or a replay, in the eager region or in what follows."""

    @sw.eager
    def part(y):
        if where == "eager region" and hidden():
            raise KeyError(y.shape)
        return y + 1

    def fn(x):
        y = part(x * 2)
        if where == "behind it" and hidden():
            raise KeyError(y.shape)
        return y * 3

    f = rt.graph(fn)
    for i in range(5):
        hidden(int(i == call))
        x = rt.array(np.ones(3))
        with contextlib.suppress(KeyError):
            f(x)
        del x
        with rt.step():
            pass
        assert storages() == 0, i


def _by_attribute(rt, model):
    @rt.graph
    def step(x):
        return x + model.weight

    model.step = step


def _by_list(rt, model):
    model.steps = steps = []

    @rt.graph
    def step(x):
        return x + model.weight * len(steps)

    steps.append(step)
    model.step = step


def _by_recursion(rt, model):
    @rt.graph
    def step(x, n=1):
        return step(x, n - 1) if n else x + model.weight

    model.step = step


@pytest.mark.parametrize("tie", [_by_attribute, _by_list, _by_recursion])
@pytest.mark.parametrize("calls", [1, 2, 5])
def test_a_function_that_reaches_itself(rt, storages, tie, calls):
    """It is garbage once nobody else has it, and so is what it reaches."""
    before = storages(), rt.memory_stats()["ranges"]
    model, x = Thing(), rt.array(np.ones(4))
    model.weight = rt.array(np.ones(4))
    tie(rt, model)
    for _ in range(calls):
        assert np.asarray(model.step(x)).tolist() == [2.0] * 4
    gone = weakref.ref(model)
    del model, x
    gc.collect()
    assert gone() is None
    rt.memory_stats()  # gives back what finalisers have left
    assert (storages(), rt.memory_stats()["ranges"]) == before


class Thing:
    """Holds what it is given."""
