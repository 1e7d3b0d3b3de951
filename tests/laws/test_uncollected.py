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
    os.set_blocking(out, False)

    def heard():
        try:
            return os.read(out, 99).decode()
        except BlockingIOError:
            return ""

    try:
        yield lambda: os.write(into, b"+" if gc.isenabled() else b"-"), heard
    finally:
        os.close(out)
        os.close(into)


def test_captures_are_not_collected_in(rig, told):
    """Warm-ups are, and all that comes after."""
    tell, heard = told

    def fn(x):
        tell()
        return x * 2.0 + 1.0

    graphed, x = rig.runtime.graph(fn), rig.runtime.array(np.ones(8))
    gc.enable()
    said = []
    for _ in range(5):
        assert bool((graphed(x) == 3.0).all())
        assert gc.isenabled()
        said.append(heard())
    assert said[:2] == ["+", "-"]
    assert set(said[2:]) <= {"", "-"}
    assert said[-1] == ""
    del x


def test_live_parts_are_collected_in(rig, told):
    """They are no part of a capture, which goes on behind them."""
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
        assert bool((graphed(x) == 3.0).all())
        assert heard() == expected
        assert gc.isenabled()
    del x


def test_what_fails_in_a_capture_gives_it_back(rig):
    """The function's own errors are raised when it is as before."""

    def fails(x):
        if not gc.isenabled():
            raise KeyError("mine")
        return x + 1.0

    graphed, x = rig.runtime.graph(fails), rig.runtime.array(np.ones(8))
    gc.enable()
    graphed(x)
    with pytest.raises(KeyError):
        graphed(x)
    assert gc.isenabled()
    del x
