"""No garbage is collected inside of a capture; everywhere else it is, as before."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

import sapwood as sw


@pytest.fixture
def told():
    """Return what says whether Python collects now, unseen, and what it said."""
    out, into = os.pipe()
    try:
        yield (
            lambda: os.write(into, b"+" if gc.isenabled() else b"-"),
            (lambda: os.read(out, 99).decode()),
        )
    finally:
        os.close(out)
        os.close(into)


def test_captures_are_not_collected_in(rig, told):
    """Warm-ups are, and live parts between captures, and all that comes after."""
    tell, heard = told

    @sw.eager
    def aside(y):
        tell()
        return y

    def fn(x):
        tell()
        y = aside(x * 2.0)
        tell()
        return y + 1.0

    graphed, x = rig.runtime.graph(fn), rig.runtime.array(np.ones(8))
    gc.enable()
    for expected in ("+++", "-+-", "+", "+"):
        assert np.array_equal(np.asarray(graphed(x)), np.full(8, 3.0))
        assert heard() == expected
        assert gc.isenabled()
    del x


def test_what_fails_in_a_capture_gives_it_back(rig):
    """The function's own errors, and what cannot be recorded."""

    def fails(x):
        if not gc.isenabled():
            raise KeyError("mine")
        return x + 1.0

    def waits(x):
        return x * float(np.asarray(x)[0])

    x = rig.runtime.array(np.ones(8))
    gc.enable()
    for fn, error in ((fails, KeyError), (waits, sw.CaptureError)):
        graphed = rig.runtime.graph(fn)
        with pytest.raises(error):
            for _ in range(2):
                graphed(x)
        assert gc.isenabled()
    del x
