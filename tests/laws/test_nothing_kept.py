"""What went wrong keeps no array alive: reference counts free all that callers drop."""

from __future__ import annotations

import gc
import itertools
import weakref

import numpy as np
import pytest

import sapwood as sw
from sapwood.testing import Rig

PAGE = 1 << 16


@pytest.fixture(autouse=True)
def _no_collections():
    """Only reference counts free memory."""
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


def _reads(held, x):
    return float((held(x * 2) + 1).sum())


def _writes_python(held, x, log=[]):  # noqa: B006 - written on purpose
    log.append(1)
    return held(x * 2)


def _from_host(held, x):
    return held(x + sw.default_runtime().array(np.ones(3)))


def _raises(held, x):
    y = held(x * 2)
    raise KeyError(y.shape)


def _differs(held, x, count=itertools.count()):  # noqa: B008 - counts on
    return held(x * float(count.__next__()))


FAULTS = {
    "a host read": _reads,
    "a Python write": _writes_python,
    "an exception": _raises,
}


def _failing(how, held):
    fault = FAULTS[how]
    return lambda x: fault(held, x)


@pytest.mark.parametrize("tolerant", [True, False])
@pytest.mark.parametrize("how", FAULTS)
def test_what_cannot_be_recorded_keeps_nothing(rt, how, tolerant):
    """Neither the warm-up that shows it nor the calls after it."""
    held = Held()
    f = rt.graph(
        _failing(how, held), on_unsupported="eager" if tolerant else "raise"
    )
    for _ in range(4):
        x = held(rt.array(np.ones(3)))
        try:
            f(x)
        except (sw.CaptureError, KeyError):
            pass
        del x
        assert held.alive() == 0
    assert f.stats().recordings == 0
