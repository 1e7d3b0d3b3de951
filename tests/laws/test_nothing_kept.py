"""What went wrong keeps no array alive: reference counts free all that callers drop."""

from __future__ import annotations

import contextlib
import gc
import weakref

import numpy as np
import pytest

import sapwood as sw

PAGE = 1 << 16


@pytest.fixture(autouse=True)
def _no_collections(rig):
    """Only reference counts free memory, while nothing of this test is garbage yet."""
    assert not rig.finished
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Held:
    """The storages that a test made, held weakly."""

    def __init__(self):
        self.refs = []

    def __call__(self, array):
        self.refs.append(weakref.ref(array.storage))
        return array

    def alive(self):
        return sum(ref() is not None for ref in self.refs)


@pytest.fixture
def hidden(tmp_path):
    """Return a value that no guard can see, for functions made wrong on purpose."""
    path = tmp_path / "value"

    def hidden(value=None):
        if value is not None:
            path.write_text(str(value))
        with open(path) as file:  # noqa: PTH123 - a C function: no code is reached
            return float(file.read())

    hidden(0)
    return hidden


LOG = []


def _write(y):
    LOG.append(y.ndim)


def _raise(y):
    raise KeyError(y.shape)


FAULTS = {
    "a host read": lambda y: float(y.sum()),
    "host data": lambda y: np.zeros(3, like=y) + np.add(y, np.ones(3)),
    "a Python write": _write,
    "an exception": _raise,
    "another op": lambda y: y * 7,
}


@pytest.mark.parametrize("tolerant", [True, False])
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_recorded_keeps_nothing(rt, hidden, fault, late, tolerant):
    """Neither the warm-up or the recording that shows it, nor the calls after it."""
    held, fails = Held(), FAULTS[fault]
    hidden(not late)

    def fn(x):
        y = held(x * 2)
        if hidden():
            fails(y)
        return held(y + 1)

    f = rt.graph(fn, on_unsupported="eager" if tolerant else "raise")
    failed = 0
    for i in range(5):
        hidden(not late or i == 1)
        x = held(rt.array(np.ones(3)))
        try:
            f(x)
        except (sw.CaptureError, KeyError, TypeError):
            failed += 1
        del x
        with rt.step():
            pass
        assert held.alive() == 0, i
    assert failed or tolerant or fault == "another op"


@pytest.mark.parametrize("fails", range(0, 60, 3))
def test_a_recording_that_the_device_fails_keeps_nothing(rig, fails):
    """Whichever driver call fails, the arrays go when their names do."""
    rt, held = rig.runtime, Held()
    f = rt.graph(lambda x: held(held(x * 2) + 1))
    for i in range(4):
        x = held(rt.array(np.ones(3)))
        rig.faulty.plan = {rig.faulty.position + fails} if i == 1 else ()
        with contextlib.suppress(sw.DriverError):
            f(x)
        rig.faulty.plan = ()
        del x
        with contextlib.suppress(sw.DriverError):
            rt.synchronize()
        assert held.alive() == 0, i


def test_memory_that_ran_out_keeps_nothing(make_rig):
    """Neither where eviction found some, nor where an `OutOfMemory` was raised."""
    rt, held = make_rig(total=40 * PAGE).runtime, Held()
    f = rt.graph(lambda x: held(held(x * 2) + 1))
    for pages in (1, 2, 3, 4, 5, 30, 2, 60, 3, 5, 1):
        for _ in range(3):
            with contextlib.suppress(sw.OutOfMemory):
                x = held(rt.array(np.ones(pages * PAGE // 8)))
                f(x)
            x = None
            assert held.alive() == 0, pages
    assert f.stats().evicted or f.stats().passed_through
