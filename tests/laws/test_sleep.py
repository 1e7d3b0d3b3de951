"""What gave its memory back has it again when it is called, and all is as before."""

from __future__ import annotations

import gc
import threading
import warnings

import numpy as np
import pytest

import sapwood as sw
from sapwood.memory.validate import validate
from tests.support.frameworks import on_host

SIZE = 40_000
"""Values of an array that is larger than a page of any device here but a GPU's."""


def _step(x, w):
    y = x * w + x
    return y.sum(), y * 2


def _replayed(rt, fn=_step, calls=6):
    """Return a function that is replayed, what it is called with, and its results."""
    f = rt.graph(fn)
    args = rt.array(np.arange(float(SIZE))), rt.array(np.full(SIZE, 3.0))
    expected = [on_host(each).copy() for each in fn(*args)]
    for _ in range(calls):
        f(*args)
    assert f.stats().replays >= 1
    return f, args, expected


def _same(found, expected):
    return all(
        on_host(a).tobytes() == b.tobytes()
        for a, b in zip(found, expected, strict=True)
    )


def _mapped(rt):
    return rt.memory_stats()["pages.mapped"]


@pytest.mark.every_framework
def test_a_call_wakes_what_sleeps(rt):
    """It is replayed: nothing is recorded anew, and the memory is as much as before."""
    f, args, expected = _replayed(rt)
    before, stats = _mapped(rt), f.stats()
    for again in range(1, 4):
        assert rt.sleep() >= before * rt.memory_stats()["page.bytes"]
        assert _mapped(rt) == 0
        assert validate(rt.memory_snapshot()) == []
        assert _same(f(*args), expected)
        assert _mapped(rt) == before
        assert f.stats().replays == stats.replays + again
    assert f.stats().recordings == stats.recordings


@pytest.mark.every_framework
def test_what_is_held_is_there_all_the_time(rt):
    """Its memory stays, and what is computed later lies elsewhere."""
    f, args, expected = _replayed(rt)
    kept = [f(*args) for _ in range(3)]
    rt.sleep()
    assert all(_same(each, expected) for each in kept)
    args[0][...] = 1.0
    after = f(*args)
    rt.sleep()
    assert all(_same(each, expected) for each in kept)
    assert on_host(after[0]) == 4.0 * SIZE


def test_memory_comes_back_when_it_is_asked_for(rt):
    """Or not at all: to sleep twice gives nothing, to wake twice takes nothing."""
    f, args, expected = _replayed(rt)
    before = _mapped(rt)
    assert rt.sleep() > 0
    assert rt.sleep() == 0
    rt.wake()
    assert _mapped(rt) == before
    rt.wake()
    assert _mapped(rt) == before
    assert _same(f(*args), expected)


def test_nothing_is_recorded_or_launched(rig):
    """All that sleep and wake ask of the driver is to unmap and to map."""
    f, args, _ = _replayed(rig.runtime)
    before = rig.recorded.ever.copy()
    rig.runtime.synchronize()
    rig.runtime.sleep()
    rig.runtime.wake()
    asked = {*(rig.recorded.ever - before)} - {"synchronize"}
    assert {"unmap", "map"} <= asked
    allowed = {"unmap", "release", "create", "map", "set_access"}
    assert {each for each in asked if not each.endswith("_stream")} <= allowed
    del f, args


@pytest.mark.every_framework
def test_others_are_recorded_meanwhile(rt):
    """A capture wakes the rest: what it maps may be what they share."""
    f, args, expected = _replayed(rt)
    rt.sleep()
    g, args_of_g, expected_of_g = _replayed(rt, lambda x, w: (x - w, (x + w).sum()))
    assert _same(f(*args), expected)
    assert _same(g(*args_of_g), expected_of_g)


def test_what_is_dropped_in_its_sleep_is_gone(rt):
    """And what is closed then: the leak check of every test sees to the rest."""
    f, args, expected = _replayed(rt)
    g, *_ = _replayed(rt, lambda x, w: (x - w, (x + w).sum()))
    rt.sleep()
    ranges = rt.memory_stats()["ranges"]
    del g, _
    gc.collect()
    rt.synchronize()
    assert rt.memory_stats()["ranges"] < ranges
    assert _same(f(*args), expected)
    rt.sleep()


def test_a_closed_runtime_does_not_sleep(rt):
    """As it does nothing else."""
    _replayed(rt)
    rt.sleep()
    rt.close()
    for act in rt.sleep, rt.wake:
        with pytest.raises(sw.MisuseError, match="closed"):
            act()


def test_where_memory_is_short_calls_run_eagerly(make_rig):
    """What others have taken meanwhile is theirs; the results are the same."""
    rt = make_rig(memory_limit=1 << 23).runtime
    f, args, expected = _replayed(rt)
    page = rt.memory_stats()["page.bytes"]
    rt.sleep()
    free = (1 << 23) - rt.memory_stats()["heap.pages"] * page
    # Less is left than the call itself takes, and a little more than nothing.
    taken = [rt.array(np.zeros(page // 8)) for _ in range(free // page - 14)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sw.GraphSkipWarning)
        for _ in range(3):
            assert _same(f(*args), expected)
    taken.clear()
    for _ in range(8):
        assert _same(f(*args), expected)


def test_nobody_is_evicted_for_what_sleeps(make_rig):
    """Neither where others take all there is, nor where it cannot wake for that."""
    rt = make_rig(memory_limit=1 << 25).runtime
    made = [_replayed(rt, lambda x, w, n=n: ((x * w).sum(), x - n)) for n in range(3)]
    page, wanted = rt.memory_stats()["page.bytes"], _mapped(rt)
    rt.sleep()
    free = (1 << 25) // page - rt.memory_stats()["heap.pages"]
    taken = rt.array(np.zeros((free - wanted + 1) * page // 8))
    for _ in range(2):
        with pytest.raises(sw.OutOfMemory):
            rt.wake()
        assert _mapped(rt) == 0
        assert validate(rt.memory_snapshot()) == []
    del taken
    rt.wake()
    for f, args, expected in made:
        before = f.stats()
        assert _same(f(*args), expected)
        assert (f.stats().replays, f.stats().evicted) == (before.replays + 1, 0)


def test_a_recording_stays_while_all_wake_for_it(rt, monkeypatch):
    """Where memory is short by then, others go."""
    f, args, expected = _replayed(rt)
    rt.sleep()
    recordings = rt._recordings
    pages = recordings.device.pages
    wake = pages.wake

    def short():
        if pages.asleep:
            recordings.evict()
        wake()

    monkeypatch.setattr(pages, "wake", short)
    assert _same(f(*args), expected)
    assert f.stats().evicted == 0


def test_a_function_does_not_sleep_inside(rt):
    """It is skipped, by name."""

    def naps(x):
        rt.sleep()
        return x + 1

    f, x = rt.graph(naps), rt.array(np.ones(3))
    with pytest.warns(sw.GraphSkipWarning, match="sleep"):
        found = [on_host(f(x)).tolist() for _ in range(3)]
    assert found == [[2.0] * 3] * 3


def test_parts_and_branches_sleep(agree):
    """Regions that run live, and reads that decide, go on as before."""

    def program(w):
        seen = []

        @sw.eager
        def shown(x):
            seen.append(float(x.sum()))

        @w.graph
        def f(x):
            y = x * 2
            shown(y)
            return y + 1 if float(y[0]) > 0 else y - 1

        for k in range(12):
            if k % 3 == 2:
                w.sleep()
            yield f(w.array(np.array([1.0, 2.0]) * (-1) ** k)), list(seen)

    agree(program)


def test_threads_sleep_and_call(rt):
    """Whenever it comes, a call finds its memory."""
    f, args, expected = _replayed(rt)
    wrong, over = [], threading.Event()

    def calls():
        wrong.extend(k for k in range(60) if not _same(f(*args), expected))
        over.set()

    caller = threading.Thread(target=calls)
    caller.start()
    slept = 0
    while not over.is_set():
        slept += bool(rt.sleep())
    caller.join()
    assert not wrong
    assert slept
