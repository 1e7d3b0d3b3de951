"""Control-C, wherever it comes in a call: what is called next is right all the same."""

from __future__ import annotations

import contextlib
import gc
import itertools

import numpy as np
import pytest

import sapwood as sw
from sapwood.uncollected import uncollecting
from tests.support.interrupts import interrupted

BEFORE = 8
"""Calls until those that come are replays of the quickest kind."""

# What interrupts a finaliser, Python shows, and goes on.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


def fn(x, n):
    return x * 2 + n


def expected(n):
    return [2.0 * v + n for v in range(5)]


@sw.eager
def aside(y):
    return y + 0.0


def broken(x, n):
    return aside(x * 2) + n


class Scene:
    """A graphed function, its argument, and results that are kept."""

    def __init__(self, rt, fn=fn):
        self.rt, self.f, self.kept = rt, rt.graph(fn), []
        self.x = rt.array(np.arange(5.0))
        self.collects = gc.isenabled(), gc.get_threshold()

    def settle(self):
        """Call until all calls are replays."""
        for _ in range(BEFORE):
            self.f(self.x, 1.0)

    def check(self):
        """Raise unless Python collects, and results are right: kept, and to come."""
        assert not uncollecting()
        assert (gc.isenabled(), gc.get_threshold()) == self.collects
        for n in (1.0, 2.0, 1.0):
            assert np.asarray(self.f(self.x, n)).tolist() == expected(n)
        for result in self.kept:
            assert np.asarray(result).tolist() == expected(1.0)
        assert np.asarray(self.x * 2 + 1.0).tolist() == expected(1.0)
        del self.kept[6:]

    def replay(self):
        self.f(self.x, 1.0)

    def keep(self):
        self.kept.append(self.f(self.x, 1.0))

    def drop(self):
        self.kept.clear()
        self.f(self.x, 1.0)

    def eager(self):
        self.kept.append(self.rt.array(np.arange(5.0)) * 2 + 1.0)


@pytest.mark.parametrize("what", ["replay", "keep", "drop", "eager"])
def test_calls(what):
    """At every place: replays, results that are kept or let go of, eager work."""
    with sw.Runtime(device="emulated") as rt:
        scene = Scene(rt)
        scene.settle()
        for at in itertools.count(1):
            where = interrupted(getattr(scene, what), at)
            if where is None:
                break
            scene.check()
        assert at > 20
        scene.kept.clear()
        before = scene.f.stats().replays
        scene.settle()
        assert scene.f.stats().replays == before + BEFORE


@pytest.mark.one_in(2)
@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("start", range(4))
def test_first_calls(call, start):
    """At many places of warm-ups and recordings, and of the replay behind them."""
    with sw.Runtime(device="emulated") as rt:
        for at in range(1 + 17 * start, 4000, 68):
            scene = Scene(rt)
            for _ in range(call - 1):
                scene.replay()
            over = False
            # What was mapped just then is known to nobody, who gives its range back.
            with contextlib.suppress(sw.DriverError):
                over = interrupted(scene.replay, at) is None
            scene.check()
            del scene
            if over:
                break
        assert at > 60
        gc.collect()


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize(
    "within",
    [
        "driver/streams.py",
        "tree/watch/session.py",
        "memory/device.py",
    ],
)
def test_nothing_stays_set(within, call):
    """At every place where streams, sessions and routes are entered or left."""
    for at in itertools.count(1):
        with sw.Runtime(device="emulated") as rt:
            scene = Scene(rt)
            for _ in range(call - 1):
                scene.replay()
            with contextlib.suppress(sw.DriverError):
                over = interrupted(scene.replay, at, within) is None
        # Whatever were still set would be of a runtime that is closed.
        with sw.Runtime(device="emulated") as other:
            Scene(other).check()
        if over:
            break
    assert at > 1


@pytest.mark.parametrize("call", [1, 2])
def test_no_capture_stays_open(call):
    """At every place where a function is watched: the same stream captures again."""
    with sw.Runtime(device="emulated") as rt:
        for at in itertools.count(1):
            scene = Scene(rt)
            for _ in range(call - 1):
                scene.replay()
            with contextlib.suppress(sw.DriverError):
                over = interrupted(scene.replay, at, "tree/watch/watch.py") is None
            scene.check()
            del scene
            if over:
                break
        assert at > 10
        gc.collect()


@pytest.mark.parametrize("fn", [fn, broken])
def test_where_collecting_is_halted(fn):
    """At every place where a capture, or an eager region in it, begins or ends."""
    with sw.Runtime(device="emulated") as rt:
        for at in itertools.count(1):
            scene = Scene(rt, fn)
            scene.replay()
            if interrupted(scene.replay, at, "/uncollected.py") is None:
                break
            scene.check()
        assert at > 8
        del scene
        gc.collect()
