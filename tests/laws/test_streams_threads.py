"""Law 13: streams and threads; what depends on what is ordered, and nothing is lost."""

from __future__ import annotations

import gc
import random
import threading

import numpy as np
import pytest

import sapwood as sw


def _work(x, y):
    h = x * 2
    h += y
    return h, (h * h).sum()


def test_two_streams_with_dependent_data(agree):
    """Replays and eager work on two streams read what the other has written."""

    def program(w):
        one, two = w.stream(), w.stream()
        f, g = w.graph(_work), w.graph(lambda h: h - 1)
        x, y = w.values(16), w.values(16)
        for _ in range(8):
            with one:
                h, total = f(x, y)
            with two:
                x = g(h) * 0.25
                y = y + total * 0.001
        yield x, y, h, total

    agree(program)


def test_a_read_is_over_before_its_bytes_are_written(agree):
    """``y`` read on one stream, dropped, and overwritten from another."""

    def program(w):
        one, two = w.stream(), w.stream()
        f, x = w.graph(lambda x: x + 1), w.values(32)
        out = []
        for i in range(12):
            with one:
                y = f(x)
            with two:
                out.append(y * 2 + y)
            del y
            with one:
                x += i
                f(x)
        yield out, x

    agree(program)


def test_a_replay_waits_for_readers_of_what_it_writes(agree):
    """An argument that another stream still reads is written only afterwards."""

    def advance(state, x):
        state += x
        return state.sum()

    def program(w):
        one, two = w.stream(), w.stream()
        f, state, x = w.graph(advance), w.values(32), w.values(32)
        out = []
        for _ in range(10):
            with two:
                out.append(state * 3)
            with one:
                total = f(state, x)
            with two:
                x = x * 0.5 + total * 1e-3
        yield out, state, x

    agree(program)


def test_a_copied_argument_is_read_before_it_is_written(agree):
    """Arguments that replays copy in may be overwritten from another stream at once."""

    def program(w):
        one, two = w.stream(), w.stream()
        f, y, out = w.graph(_work), w.values(16), []
        for i in range(10):
            with one:
                x = w.values(16)
                out.append(f(x, y))
            with two:
                x += 100
                y[i] = i
                del x
        yield out, y

    agree(program)


def test_warm_up_record_and_replay_on_different_streams(agree):
    """Where a recording was made says nothing about where it runs."""

    def program(w):
        streams = [w.stream() for _ in range(3)]
        f, x, y = w.graph(_work), w.values(16), w.values(16)
        for i in range(12):
            with streams[i % 3]:
                h, total = f(x, y)
            if i % 2:
                x += 1
            else:
                with streams[(i + 1) % 3]:
                    y -= total * 1e-3
        yield h, total, x, y

    assert agree(program).count("recordings") <= 3


def test_explicit_waits_and_events(agree):
    """What users say about order is kept, beside what is known without them."""

    def program(w):
        one, two = w.stream(), w.stream()
        f, x, y = w.graph(_work), w.values(16), w.values(16)
        for _ in range(6):
            with one:
                h, _ = f(x, y)
                event = one.record()
            two.wait(event)
            with two:
                x = h * 0.5
            one.wait(two)
        yield x, h

    agree(program)


@pytest.mark.parametrize("fresh", [True, False])
def test_streams_inside_a_function(agree, fresh):
    """A function may fork and join streams of its own; replays keep the order."""

    def program(w):
        side, more = w.stream(), w.stream()

        def fn(x, y):
            h = x * 2
            with side:
                a = h + y
                with more:
                    b = a * h
                x += 1
            c = b - a
            h[0] = 7
            return a, b, c, h, x.sum()

        f, x, y = w.graph(fn), w.values(8), w.values(8)
        for i in range(6):
            out = f(x, y)
            if i % 2:
                yield out, x
            if fresh:
                x, y = w.values(8), w.values(8)

    assert agree(program).count("replays") > 0


def test_a_stream_used_inside_and_outside(agree):
    """A stream that was forked in a capture is an ordinary one afterwards."""

    def program(w):
        side = w.stream()

        def fn(x):
            with side:
                y = x * 3
            return y + 1

        f, x = w.graph(fn), w.values(8)
        for _ in range(6):
            with side:
                x = x + 1
            y = f(x)
            with side:
                z = y * x
        yield x, y, z

    agree(program)


def test_random_programs_on_three_streams(agree):
    """Any order of replays, eager work, writes and drops over three streams."""

    def program(w):
        draw = random.Random(21)
        streams = [w.stream() for _ in range(3)]
        fs = [
            w.graph(lambda a, b: (a + b) * 0.5),
            w.graph(lambda a, b: (a - b, a * 0.5)[draw_free(a)]),
            w.graph(_in_place),
        ]
        pool = [w.values(24) for _ in range(5)]
        for _ in range(150):
            a, b, to = (draw.randrange(5) for _ in range(3))
            with draw.choice(streams):
                act = draw.randrange(6)
                if act < 3:
                    pool[to] = fs[act](pool[a], pool[b])
                elif act == 3:
                    pool[to] = pool[a] * 0.5 + pool[b][::-1] * 0.25
                elif act == 4:
                    pool[to] += pool[a] * 0.125
                else:
                    pool[to] = pool[a]
        yield pool

    agree(program)


def draw_free(array):
    """Choose by shape: a Python value that is the same in every call."""
    return array.ndim % 2


def _in_place(a, b):
    a *= 0.5
    a += b * 0.25
    return a - b


def test_memory_freed_on_another_stream(agree):
    """Temporaries dropped while a stream still works on them are not reused early."""

    def program(w):
        one, two = w.stream(), w.stream()
        f, x, out = w.graph(_work), w.values(64), []
        for i in range(15):
            with one:
                t = x * i
                h, _ = f(t, x)
            with two:
                out.append((h + t).sum())
            del t, h
            with two:
                filler = x * -1
                del filler
        yield out

    agree(program)


def test_reading_on_another_stream(rt):
    """The host reads the right values whichever stream is current."""
    one, two = rt.stream(), rt.stream()
    f, x = rt.graph(lambda x: x * 2), rt.array(np.arange(6.0))
    for i in range(6):
        with one:
            y = f(x)
            x += 1
        with two:
            assert np.asarray(y).tolist() == [(j + i) * 2 for j in range(6)]


def test_a_stream_that_is_dropped(rt, bits):
    """Streams may die while their work is pending."""
    f, x = rt.graph(lambda x: x * 2), rt.array(np.arange(6.0))
    for _ in range(8):
        stream = rt.stream()
        with stream:
            y = f(x)
            z = y + 1
        del stream
        gc.collect()
    assert bits(z)[0][-1] == (np.arange(6.0) * 2 + 1).tobytes()


# Threads.


def _in_threads(*jobs, seconds=60):
    """Run jobs at once; raise what they raise, and fail where one never ends."""
    errors, ready = [], threading.Barrier(len(jobs))

    def run(job):
        try:
            ready.wait()
            job()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), "deadlock"
    if errors:
        raise errors[0]


@pytest.fixture
def garbage():
    """Collect garbage inside nearly every allocation of a Python object."""
    threshold = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(7, 1, 1)
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


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
    _in_threads(*(_job(rt, f, seed, own_stream=own_stream) for seed in range(4)))
    stats = f.stats()
    calls = stats.warmups + stats.recordings + stats.replays + stats.passed_through
    assert calls == 160
    assert stats.recordings <= 6
    assert stats.replays > 0


def test_four_threads_four_functions(rt):
    """Four threads call different functions of one runtime."""
    _in_threads(
        *(
            _job(rt, rt.graph(lambda x, y: _work(x, y)), seed, own_stream=True)
            for seed in range(4)
        )
    )


@pytest.mark.parametrize("own_stream", [False, True])
def test_four_threads_under_garbage_collection(rt, garbage, own_stream):
    """So they do while garbage is collected inside every call, outputs among it."""
    f, g = rt.graph(_work), rt.graph(lambda x, y: _work(x, y))
    _in_threads(
        *(
            _job(rt, h, seed, 15, own_stream=own_stream, cycles=True)
            for seed, h in enumerate((f, g, f, g))
        )
    )


def test_threads_share_a_state(rt):
    """Updates in place of one shared array, from four threads: none is lost."""

    def add(state, n):
        state += n
        return state * 1

    f, state = rt.graph(add), rt.array(np.zeros(8))

    def job(n):
        return lambda: [f(state, n) for _ in range(25)]

    _in_threads(*(job(n) for n in (1, 2, 4, 8)))
    assert np.asarray(state).tolist() == [25 * 15] * 8


def test_threads_hand_outputs_over(rt):
    """Outputs made on one thread are read and dropped on another."""
    make, use = rt.graph(lambda x: x * 3), rt.graph(lambda h: h + 1)
    ours, done = [], []

    def produce():
        for i in range(60):
            ours.append((i, make(rt.array(np.full(8, float(i))))))

    def consume():
        while len(done) < 60:
            try:
                i, h = ours.pop(0)
            except IndexError:
                continue
            done.append(i)
            assert np.asarray(use(h)).tolist() == [i * 3 + 1] * 8

    _in_threads(produce, consume)


def test_a_capture_does_not_see_other_threads(rt):
    """Eager work of another thread is no part of what one thread records."""
    inside, go_on = threading.Event(), threading.Event()
    turns = []

    def slow(x):
        y = x * 2
        turns.append(len(turns))
        turns.pop()
        inside.set()
        go_on.wait(30)
        return y + 1

    f, x, other = rt.graph(slow), rt.array(np.ones(4)), rt.array(np.zeros(4))
    results = []

    def calls():
        for _ in range(4):
            inside.clear()
            results.append(f(x))

    def meanwhile():
        nonlocal other
        for _ in range(2):
            inside.wait(30)
            other = other + 1
            go_on.set()

    _in_threads(calls, meanwhile)
    assert np.asarray(other).tolist() == [2] * 4
    for y in results:
        assert np.asarray(y).tolist() == [3] * 4
    assert f.stats().replays == 2


def test_a_step_on_another_thread(rt):
    """`step` ends the leases of all threads, and they see it as an error, not junk."""
    f, x = rt.graph(lambda x: x * 2), rt.array(np.ones(4))
    y = [f(x) for _ in range(4)][-1]

    def step():
        with rt.step():
            pass

    _in_threads(step)
    with pytest.raises(sw.StaleOutput):
        np.asarray(y)


def test_closing_while_others_call(make_rig):
    """A call after `close` is a `MisuseError`; one before is right."""
    rig = make_rig()
    rt = rig.runtime
    f = rt.graph(lambda x: x * 2)
    started = threading.Event()

    def calls():
        try:
            x = rt.array(np.ones(8))
            while True:
                y = f(x)
                started.set()
                assert np.asarray(y).tolist() == [2] * 8
        except sw.MisuseError as error:
            assert "closed" in str(error)

    def close():
        started.wait(30)
        rt.close()

    _in_threads(calls, calls, close)
