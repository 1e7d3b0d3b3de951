"""Recordings take addresses, of which a process has so many; outputs hold pages."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import sapwood as sw
import sapwood.knobs
from sapwood.driver.emulated import Emulated, window
from tests.support import unseen

PAGE = 2 << 20


@pytest.fixture
def scarce():
    """Take all addresses but so many bytes of them."""
    taker = Emulated()

    def leave(size):
        gc.collect()
        left, wish = taker.reserve(size), 8 << 40
        while wish >= PAGE:
            try:
                taker.reserve(wish)
            except sw.DriverError:
                wish //= 2
        taker.unreserve(left, size)

    yield leave
    taker.close()


def _recorded(rt, n, kept=None):
    """Call a function of its own on ``n`` numbers, till it is recorded; check it."""
    f = rt.graph(lambda x: x + n)
    for i in range(3):
        out = f(rt.array(np.arange(float(n)) + i))
        assert np.asarray(out).tolist() == [i + k + n for k in range(n)]
        if kept is not None:
            kept.append((out, n, i))
    return f


def _check(kept):
    for out, n, i in kept:
        assert np.asarray(out).tolist() == [i + k + n for k in range(n)]


def test_recordings_give_way_where_no_addresses_are_left(scarce):
    """Functions may have more recordings than there are addresses: the oldest go."""
    with sw.Runtime(device="emulated") as rt:
        rt.array(np.ones(4))
        scarce(6 << 30)
        functions = [_recorded(rt, n) for n in range(1, 60)]
        stats = rt.stats()
        assert stats.recordings >= 59
        assert stats.evicted > 20
        assert not stats.passed_through
        # Those of late are there still.
        before = functions[-1].stats()
        functions[-1](rt.array(np.arange(59.0)))
        assert functions[-1].stats().replays == before.replays + 1


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_calls_run_eagerly_where_outputs_hold_all_addresses(scarce):
    """No driver's error is a user's; and when outputs go, recordings come again."""
    kept, functions = [], []
    with sw.Runtime(device="emulated") as rt:
        rt.array(np.ones(4))
        scarce(3 << 30)
        functions += [_recorded(rt, n, kept) for n in range(1, 40)]
        _check(kept)
        assert rt.stats().passed_through > 0
        assert "no free addresses" in functions[-1].explain()
        kept.clear()
        f, made = functions[-1], functions[-1].stats().recordings
        for i in range(20):
            out = f(rt.array(np.arange(39.0) + i))
            assert np.asarray(out).tolist() == [i + k + 39 for k in range(39)]
        assert f.stats().recordings > made


def test_recordings_of_another_runtime_give_way(scarce):
    """Addresses are the process's: they come from whoever has idle recordings."""
    with sw.Runtime(device="emulated") as a, sw.Runtime(device="emulated") as b:
        for rt in (a, b):
            rt.array(np.ones(4))
        scarce(3 << 30)
        functions = [_recorded(a, n) for n in range(1, 40)]
        before = a.stats()
        functions.append(_recorded(b, 7))
        assert b.stats().recordings > 0
        assert not b.stats().passed_through
        assert a.stats().evicted > before.evicted
        assert functions


def test_small_outputs_of_many_recordings_are_kept():
    """Beyond a bound they hold no pages of their own, and all of them stay right."""
    kept = []
    with (
        sapwood.knobs.scope(held_beyond=20 * PAGE),
        sw.Runtime(device="emulated") as rt,
    ):
        functions = [_recorded(rt, n, kept) for n in range(1, 101)]
        live = rt.memory_stats()["pages.live"]
        assert 20 <= live <= 22
        _check(kept)
        stats = rt.stats()
        assert stats.escaped > 100
        assert not stats.passed_through
        assert functions


@pytest.mark.deep
def test_what_allocates_more_than_its_warm_up_is_recorded(tmp_path):
    """How much room a recording needs is a guess: where it is short, there is more."""
    more = tmp_path / "more"

    def f(x):
        rooms = [np.empty(75 << 20, like=x) for _ in range(3 * unseen.exists(more))]
        y = x * 2
        del rooms
        return y + 1, y

    with sw.Runtime(device="emulated") as rt:
        g, kept = rt.graph(f), []
        for i in range(6):
            kept.append(g(rt.array(np.arange(9.0) + i)))
            more.touch()
        for i, (one, two) in enumerate(kept):
            assert np.asarray(two).tolist() == [2.0 * (k + i) for k in range(9)]
            assert np.asarray(one).tolist() == [2.0 * (k + i) + 1 for k in range(9)]
        stats = g.stats()
        assert stats.warmups == 1
        assert not stats.passed_through


def _cell():
    """Make a runtime and drop it, as a cell of a notebook does that is run again."""
    rt = sw.Runtime("emulated")
    w = rt.array(np.ones(4))
    f = rt.graph(lambda x: x + w)
    for _ in range(3):
        y = f(w)
    return w, y


def _held():
    return len([*Path("/proc/self/fd").iterdir()]), len(window.WINDOW._taken)


def test_runtimes_that_are_dropped_give_everything_back():
    """A cell that is run again and again leaks no addresses, no files, no memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
        before, made = _held(), None
        for _ in range(80):
            made = _cell()
        del made
        assert _held() == before


def test_a_runtime_that_is_dropped_says_what_to_write():
    """A `ResourceWarning` names the remedy; one that was closed says nothing."""
    with pytest.warns(ResourceWarning, match=r"with sw\.Runtime\(\) as rt:"):
        _cell()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with sw.Runtime("emulated") as rt:
            rt.array(np.ones(4))
        del rt


def test_arrays_outlive_a_runtime_that_is_dropped():
    """They can be read and computed with; when the last one goes, all goes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
        before = _held()
        w, y = _cell()
        assert np.asarray(w).tolist() == [1.0] * 4
        z = y * 3
        del y, w
        assert np.asarray(z + 1).tolist() == [7.0] * 4
        assert _held() != before
        del z
        assert _held() == before


def test_a_runtime_that_is_dropped_in_a_cycle_gives_everything_back():
    """What keeps it in a cycle with itself is garbage, and so is all that it has."""

    class Model:
        def __init__(self):
            self.rt = sw.Runtime("emulated")
            self.w = self.rt.array(np.ones(4))
            self.step = self.rt.graph(self.forward)

        def forward(self, x):
            return x + self.w

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
        before = _held()
        for _ in range(3):
            model = Model()
            for _ in range(4):
                y = model.step(model.w)
            del model
        del y
        gc.collect()
        assert _held() == before


def test_a_process_ends_in_silence_with_a_runtime():
    """Also one that turns all warnings into errors."""
    code = (
        "import numpy as np, sapwood as sw\n"
        "rt = sw.Runtime('emulated')\n"
        "f = rt.graph(lambda x: x + 1)\n"
        "for _ in range(4): y = f(rt.array(np.ones(4)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code],
        capture_output=True,
        check=False,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
