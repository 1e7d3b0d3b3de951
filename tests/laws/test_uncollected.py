"""No garbage is collected inside of a capture; everywhere else it is, as before."""

from __future__ import annotations

import gc
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import sapwood as sw
from tests.support import unseen


def _runs():
    return sum(each["collections"] for each in gc.get_stats())


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

    def tell():
        before = _runs()
        kept = [[] for _ in range(5_000)]
        ran = _runs() > before and bool(kept)
        unseen.write(into, b"+" if ran else b"-")
        return ran

    try:
        yield tell, heard
    finally:
        os.close(out)
        os.close(into)


@pytest.fixture
def hurried():
    """Have threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_captures_are_not_collected_in(rig, told):
    """Warm-ups are, and all that comes after."""
    tell, heard = told

    def fn(x):
        tell()
        return x * 2.0 + 1.0

    graphed, x = rig.runtime.graph(fn), rig.runtime.array(np.ones(8))
    said = []
    for _ in range(5):
        assert bool((graphed(x) == 3.0).all())
        said.append(heard())
    assert said[:2] == ["+", "-"]
    assert set(said[2:]) <= {"", "-"}
    assert said[-1] == ""
    del x


def test_eager_regions_are_collected_in(rig, told):
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
    for expected in ("+++", "-+-", "+", "+"):
        assert bool((graphed(x) == 3.0).all())
        assert heard() == expected
    del x


def test_what_fails_in_a_capture_gives_it_back(rig, told):
    """The function's own errors are raised when it is as before."""
    tell, heard = told

    def fails(x):
        if not tell():
            raise KeyError("mine")
        return x + 1.0

    graphed, x = rig.runtime.graph(fails), rig.runtime.array(np.ones(8))
    graphed(x)
    # GPUs run again, eagerly, what failed in a capture.
    try:
        graphed(x)
    except KeyError:
        assert heard() == "+-"
    else:
        assert heard() == "+-+"
    assert tell()
    del x


def test_a_program_may_ask_whether_python_collects(rig):
    """It is told what it set itself, in a capture, too."""

    def asks(x):
        return x * 2.0 if gc.isenabled() else x * 3.0

    graphed, x = rig.runtime.graph(asks), rig.runtime.array(np.ones(8))
    for turn in (gc.enable, gc.disable, gc.enable):
        turn()
        for _ in range(4):
            assert bool((graphed(x) == asks(x)).all())
    del x


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("shared", [True, False])
def test_threads_that_work_do_not_change_what_a_program_reads(make_rig, shared):
    """Two of them, on one runtime or on one each: none of their programs is refused."""
    rigs = [make_rig()] * 2 if shared else [make_rig(), make_rig()]

    def programs(rt):
        x = rt.array(np.ones(8))
        for _ in range(20):
            graphed = rt.graph(lambda x: x * 2.0 if gc.isenabled() else x * 3.0)
            for _ in range(3):
                assert bool((graphed(x) == 2.0).all())

    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(programs, rig.runtime) for rig in rigs]:
            each.result()


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("shared", [True, False])
def test_captures_are_not_collected_in_while_others_work(make_rig, told, shared):
    """Device calls of another thread begin and end inside of them."""
    tell, heard = told
    rig = make_rig()
    other, over = rig if shared else make_rig(), threading.Event()

    def works():
        y = other.runtime.array(np.ones(8))
        while not over.is_set():
            y *= 1.0

    def fn(x):
        tell()
        return x + 1.0

    x = rig.runtime.array(np.ones(8))
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(works)
        try:
            for _ in range(20):
                graphed = rig.runtime.graph(fn)
                graphed(x)
                heard()
                graphed(x)
                assert heard() == "-"
        finally:
            over.set()
        working.result()
    del x
