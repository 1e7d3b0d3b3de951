"""CuPy's settings decide what is computed: a recording is replayed under its own."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

pytestmark = pytest.mark.gpu


@contextmanager
def _tf32(cp):
    from cupy._core import _routines_linalg as theirs

    before = theirs.get_compute_type(cp.dtype("f"))
    theirs.set_compute_type(cp.dtype("f"), theirs.COMPUTE_TYPE_TF32)
    try:
        yield
    finally:
        theirs.set_compute_type(cp.dtype("f"), before)


@contextmanager
def _no_accelerator(_):
    from cupy import _core

    before = _core.get_reduction_accelerators()
    _core.set_reduction_accelerators([])
    try:
        yield
    finally:
        _core.set_reduction_accelerators(before)


SETTINGS = {"products in tf32": _tf32, "reductions without CUB": _no_accelerator}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_is_guarded(rt, cp, setting):
    """Results under it are eager ones under it, and the same for those without."""

    def fn(x, y):
        return x @ y, (x * y).sum(), x.sum(axis=0)

    f, (x, y) = rt.graph(fn), cp.random.RandomState(3).rand(2, 96, 96).astype("f")
    bits = []
    for ours in (fn, f):
        for _ in range(3):
            for within in (False, True):
                if within:
                    with SETTINGS[setting](cp):
                        found = [[each.tobytes() for each in ours(x, y)] for _ in "123"]
                else:
                    found = [[each.tobytes() for each in ours(x, y)] for _ in "123"]
                bits.append(found)
    assert bits[:6] == bits[6:]
    assert f.stats().replays >= 8


def test_a_setting_that_changes_is_named(rt, cp):
    """What is told of the miss is what one would write."""
    f, x = rt.graph(lambda x: x * 2), cp.ones(4)
    for _ in range(4):
        f(x)
    with _no_accelerator(cp):
        f(x)
    assert "get_reduction_accelerators" in f.explain()
