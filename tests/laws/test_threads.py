"""Law 13, threads: four threads, one runtime; results right, and no deadlock."""

from __future__ import annotations

import gc
import queue
import sys
import threading

import numpy as np
import pytest

import sapwood as sw
from tests.support.frameworks import on_host
from tests.support.threads import in_threads

pytestmark = pytest.mark.every_kind


def _work(x, y):
    h = x * 2
    h += y
    return h, (h * h).sum()


@pytest.fixture
def garbage():
    """Collect garbage inside nearly every allocation of a Python object."""
    threshold = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(7, 1, 1)
    yield
    gc.set_threshold(*threshold)


def _job(rt, f, seed, calls=40, *, own_stream=False, cycles=False):
    """Return a job that calls ``f`` on arrays of its own and checks every result."""

    def job():
        rng = np.random.default_rng(seed)
        stream = rt.stream() if own_stream else None
        y_host = rng.standard_normal(16)
        y, kept = rt.array(y_host), []
        for i in range(calls):
            x_host = rng.standard_normal(16)
            x = rt.array(x_host)
            if stream is None:
                found = f(x, y)
            else:
                with stream:
                    found = f(x, y)
            kept.append((found, _work(x_host, y_host)))
            if cycles:
                kept[-1] = [kept[-1][0], kept[-1][1]]
                kept[-1].append(kept[-1])
            if len(kept) > i % 5:
                out, expected = kept.pop(0)[:2]
                assert np.asarray(out[0]).tobytes() == expected[0].tobytes()
                assert float(out[1]) == expected[1]

    return job


@pytest.mark.parametrize("own_stream", [False, True])
def test_four_threads_one_function(rt, own_stream):
    """Four threads call the same function on their own arrays."""
    f = rt.graph(_work)
    in_threads(*(_job(rt, f, seed, own_stream=own_stream) for seed in range(4)))
    stats = f.stats()
    calls = stats.warmups + stats.recordings + stats.replays + stats.passed_through
    assert calls == 160
    assert stats.recordings <= 6
    assert stats.replays > 0


def test_four_threads_four_functions(rt):
    """D test_graph_concurrent_replay: by four threads, on streams of their own."""
    in_threads(
        *(
            _job(rt, rt.graph(lambda x, y: _work(x, y)), seed, own_stream=True)
            for seed in range(4)
        )
    )


@pytest.mark.parametrize("own_stream", [False, True])
@pytest.mark.usefixtures("garbage")
def test_four_threads_under_garbage_collection(rt, own_stream):
    """So they do while garbage is collected inside every call, outputs among it."""
    f, g = rt.graph(_work), rt.graph(lambda x, y: _work(x, y))
    in_threads(
        *(
            _job(rt, h, seed, 15, own_stream=own_stream, cycles=True)
            for seed, h in enumerate((f, g, f, g))
        )
    )


@pytest.mark.every_framework
def test_threads_share_a_state(rt):
    """Updates in place of one shared array, from four threads: none is lost."""

    def add(state, n):
        state += n
        return state * 1

    f, state = rt.graph(add), rt.array(np.zeros(8))

    def job(n):
        return lambda: [f(state, n) for _ in range(25)]

    in_threads(*(job(n) for n in (1, 2, 4, 8)))
    assert on_host(state).tolist() == [25 * 15] * 8


def test_threads_hand_outputs_over(rt):
    """Outputs made on one thread are read and dropped on another."""
    make, use = rt.graph(lambda x: x * 3), rt.graph(lambda h: h + 1)
    handed = queue.Queue(5)

    def produce():
        for i in range(60):
            handed.put((i, make(rt.array(np.full(8, float(i))))), timeout=10)

    def consume():
        for _ in range(60):
            i, h = handed.get(timeout=10)
            assert np.asarray(use(h)).tolist() == [i * 3 + 1] * 8
            del h

    in_threads(produce, consume)


def test_a_capture_does_not_see_other_threads(rt):
    """Eager work of another thread is no part of what one thread records."""
    inside, go_on = threading.Semaphore(0), threading.Semaphore(0)
    turns = []

    def slow(x):
        y = x * 2
        turns.append(len(turns))
        turns.pop()
        inside.release()
        go_on.acquire(timeout=5)
        return y + 1

    f, x, other = rt.graph(slow), rt.array(np.ones(4)), rt.array(np.zeros(4))

    def calls():
        for _ in range(4):
            assert np.asarray(f(x)).tolist() == [3] * 4

    def meanwhile():
        nonlocal other
        for _ in range(2):
            inside.acquire(timeout=5)
            other = other + 1
            go_on.release()

    in_threads(calls, meanwhile)
    assert np.asarray(other).tolist() == [2] * 4
    assert f.stats().replays == 2


def test_a_step_on_another_thread(rt):
    """`step` ends the leases of all threads, and they see it as an error, not junk."""
    f, x = rt.graph(lambda x: x * 2), rt.array(np.ones(4))
    y = [f(x) for _ in range(4)][-1]

    def step():
        with rt.step():
            pass

    in_threads(step)
    with pytest.raises(sw.StaleOutput):
        np.asarray(y)


def test_closing_while_others_call(make_rig):
    """A call after `close` is a `MisuseError`; one before is right."""
    rig = make_rig()
    rt = rig.runtime
    f = rt.graph(lambda x: x * 2)
    started, x = threading.Event(), rt.array(np.ones(8))

    def calls():
        with pytest.raises(sw.MisuseError, match="closed"):
            while True:
                y = f(x)
                started.set()
                assert np.asarray(y).tolist() == [2] * 8

    def close():
        started.wait(5)
        rt.close()

    in_threads(calls, calls, close)


@pytest.fixture
def restless():
    """Change threads as often as it goes."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("restless")
def test_streams_are_made_while_others_call(rt):
    """Also while memory that nobody holds is overwritten, which heeds all streams."""
    f, x, done = rt.graph(lambda x: x * 2), rt.array(np.arange(4.0)), threading.Event()

    def call():
        try:
            for _ in range(300):
                f(x)
        finally:
            done.set()

    def stream():
        while not done.is_set():
            held = [rt.stream() for _ in range(8)]
            with held[0]:
                f(x)

    in_threads(call, stream)
