"""Eager regions among calls: of other functions, on streams and threads, to the end."""

from __future__ import annotations

import gc
import threading
from functools import partial

import numpy as np
import pytest

import sapwood as sw
from tests.support.threads import in_threads


@pytest.mark.every_framework
def test_calls_of_other_graphed_functions(agree):
    """Inside an eager region graphed functions replay by themselves."""

    def program(w):
        g = w.graph(lambda x: x * 2 + 1)
        kept = []

        @sw.eager
        def other(x):
            y = g(x)
            kept.append(g(y))
            return y

        def fn(x):
            h = x - 1
            y = other(h)
            return h + y, y

        f = w.graph(fn)
        x = w.values(4)
        for i in range(9):
            x += 1
            if i == 6:
                kept.clear()
            yield f(x), g(x), list(kept)

    world = agree(program)
    inner, outer = (function.stats() for function in world.functions)
    if world.framework.records:
        assert outer.recordings <= 2
        assert outer.replays >= 6
        assert inner.replays > 9


def test_the_function_calls_itself_through_an_eager_region(agree):
    """Recursion goes through variants, or copies; what is held is never overwritten."""

    def program(w):
        @sw.eager
        def again(x, n):
            return f(x * 2, n - 1) if n else x * 1

        def fn(x, n):
            h = x + n
            y = again(h, n)
            return h * y

        f = w.graph(fn)
        x = w.values(4)
        for i in range(6):
            x += i
            yield [f(x, n) for n in (0, 2, 1, 4)]

    agree(program)


def test_one_recording_is_not_entered_twice(agree):
    """A call inside an eager region of the same call has a recording of its own."""

    def program(w):
        depth = []

        @sw.eager
        def again(x):
            if len(depth) < 6:
                depth.append(0)
                f(x + 1)

        def fn(x):
            h = x * 2
            again(h)
            return h + x

        f = w.graph(fn, max_variants=2)
        for _ in range(5):
            depth.clear()
            yield f(w.values(4))

    assert agree(program).count("recordings") <= 6


def test_random_numbers(agree):
    """Draws before, in and behind an eager region follow each other as eagerly."""

    def program(w):
        rng = w.generator(5)

        @sw.eager
        def noise(x):
            return x + rng.random((3,)) * float(x[0] > 0)

        def fn(x):
            h = x + rng.random((3,))
            return noise(h) * rng.random((3,))

        f = w.graph(fn)
        for _ in range(6):
            yield f(w.values(3)), rng.random((2,))

    assert agree(program).count("replays") >= 3


def test_donated_arguments(rt, bits):
    """A donated argument may be written until the end, and ends then."""

    @sw.eager
    def note(x):
        return x + float(x.sum())

    def fn(h, x):
        h += x
        y = note(h)
        h *= 2
        return h + y

    make, f = rt.graph(lambda x: x + 1), rt.graph(fn, donate=("h",))
    x = rt.array(np.arange(3.0))
    for _ in range(6):
        h = make(x)
        y = f(h, x)
        with pytest.raises(sw.StaleOutput, match="donated"):
            h + 1
        host = np.arange(3.0) * 2 + 1
        assert bits(y) == bits(host * 2 + host + host.sum())


def test_streams(agree):
    """Breaks inside `with stream:`, calls on two streams, dependent data."""

    def program(w):
        one, two = w.stream(), w.stream()

        @sw.eager
        def note(x, y):
            with two:
                x += float(y[0])
            return y * 2

        def fn(x):
            with two:
                h = x * 2
                y = note(h, x)
                z = h + y
            with one:
                x += z
            return z, x * 1

        f = w.graph(fn)
        x = w.values(4)
        for i in range(8):
            with (one, two)[i % 2]:
                y, z = f(x)
                x *= 0.5
            yield y, z, x

    assert agree(program).count("replays") >= 3


def test_a_step_inside_an_eager_region(rt, bits):
    """`step` ends what earlier calls made, not what this one is working with."""
    kept = []

    @sw.eager
    def renew(h):
        with rt.step():
            kept.append(h)

    def fn(x):
        h = x * 2
        renew(h)
        return h + 1

    f, x = rt.graph(fn), rt.array(np.arange(3.0))
    for _ in range(6):
        kept.clear()
        out = f(x)
        assert bits(kept[0], out) == bits(np.arange(3.0) * 2, np.arange(3.0) * 2 + 1)
    with rt.step(), pytest.raises(sw.StaleOutput):
        float(kept[0][0])


def test_an_argument_that_a_step_ends(rt):
    """What an eager region revokes may not be used behind it, as eagerly."""
    make, go = rt.graph(lambda x: x + 1), []

    @sw.eager
    def renew():
        if go:
            with rt.step():
                pass

    def fn(h):
        y = h * 2
        renew()
        return y + h

    f, x = rt.graph(fn), rt.array(np.zeros(3))
    for _ in range(5):
        assert np.asarray(f(make(x))).tolist() == [3] * 3
    go.append(1)
    h = make(x)
    with pytest.raises(sw.StaleOutput):
        f(h)
    go.clear()
    assert np.asarray(f(make(x))).tolist() == [3] * 3


def test_threads_meet_inside_eager_regions(rt, bits):
    """The lock is free while an eager region runs: threads can wait for each other."""
    barrier = threading.Barrier(3)

    @sw.eager
    def meet(x):
        barrier.wait(30)
        return x + float(x[0])

    def fn(x):
        h = x * 2
        return meet(h) * h

    f = rt.graph(fn)

    def work(n):
        x = rt.array(np.arange(4.0) + n)
        host = (np.arange(4.0) + n) * 2
        for _ in range(8):
            assert bits(f(x)) == bits((host + host[0]) * host)

    in_threads(*(partial(work, n) for n in range(3)))
    stats = f.stats()
    assert stats.recordings - stats.evicted <= 5


def test_another_thread_is_not_in_the_call(rt):
    """Only the calling thread is between two parts; others are as always."""
    g, x = rt.graph(lambda x: x + 1), rt.array(np.zeros(3))
    found = []

    @sw.eager
    def start(h):
        other = threading.Thread(target=lambda: found.append(np.asarray(g(h)).sum()))
        other.start()
        other.join()

    def fn(x):
        h = x + 1
        start(h)
        return h * 2

    f = rt.graph(fn)
    for _ in range(5):
        assert np.asarray(f(x)).tolist() == [2] * 3
    assert found == [6] * 5


def test_evicted_on_the_way(make_rig, bits):
    """A recording that is evicted while an eager region runs is replayed to its end."""
    rt = make_rig().runtime
    go = []

    @sw.eager
    def crowd(_):
        if go:
            for n in range(1, 9):
                y = rt.array(np.ones(n))
                for _ in range(4):
                    f(y) if n < 4 else g(y)

    def fn(x):
        h = x * 2
        if x.size > 3:
            crowd(h)
        else:
            mark()
        return h + 1

    mark = sw.eager(lambda: None)
    f = rt.graph(fn, max_recordings=1)
    g = rt.graph(lambda x: x + 1, max_recordings=1)
    x = rt.array(np.arange(4.0))
    for _ in range(4):
        f(x)
    go.append(1)
    assert bits(f(x)) == bits(np.arange(4.0) * 2 + 1)
    assert f.stats().evicted >= 1
    go.clear()
    x += 1
    for _ in range(3):
        assert bits(f(x)) == bits(np.arange(1.0, 5.0) * 2 + 1)


def test_closed_on_the_way(make_rig):
    """A runtime that an eager region closes says so, and gives everything back."""
    for when in range(4):
        rt, calls = make_rig().runtime, []

        @sw.eager
        def shut(_, rt=rt, calls=calls, when=when):
            calls.append(1)
            if len(calls) == when + 1:
                rt.close()

        def fn(x, shut=shut):
            h = x * 2
            shut(h)
            return h + 1

        f, x = rt.graph(fn), rt.array(np.arange(4.0))
        for _ in range(when):
            f(x)
        with pytest.raises(sw.MisuseError, match="closed"):
            f(x)
        assert rt.closed
        del x, f, fn, shut, calls, rt
        gc.collect()


def test_two_runtimes(make_rig):
    """An eager region of one runtime's function may use another runtime."""
    one, two = make_rig().runtime, make_rig().runtime
    g = two.graph(lambda x: x * 3)

    @sw.eager
    def through(x):
        return one.array(np.asarray(g(two.array(np.asarray(x)))))

    def fn(x):
        return through(x + 1) - x

    f, x = one.graph(fn), one.array(np.arange(3.0))
    for _ in range(5):
        assert np.asarray(f(x)).tolist() == [3, 5, 7]
    assert f.stats().replays == 3
    assert g.stats().replays == 3


def test_elsewhere_it_is_the_plain_function(rt):
    """Outside, in `disabled` and in an eager region, nothing is between anything."""
    log = []

    @sw.eager
    def inner(x):
        """Add one."""
        log.append("inner")
        return float(x.sum())

    @sw.eager
    def outer(x):
        log.append(inner(x))
        return x + 1

    x = rt.array(np.ones(3))
    assert inner(x) == 3
    assert np.asarray(outer(x)).tolist() == [2] * 3
    assert (inner.__name__, inner.__doc__) == ("inner", "Add one.")
    assert "inner" in repr(inner)
    f = rt.graph(lambda x: outer(x) * 2)
    with sw.disabled():
        assert np.asarray(f(x)).tolist() == [4] * 3
    assert f.stats().warmups == 0
    for _ in range(4):
        assert np.asarray(f(x)).tolist() == [4] * 3
    assert f.stats().replays == 2


def test_warm_runs_eager_regions(rt):
    """`warm` runs a region twice, to warm up and to record; it restores arrays."""
    calls = []

    @sw.eager
    def note(x):
        calls.append(float(x[0]))

    def fn(x):
        x += 1
        note(x)
        return x * 2

    f, x = rt.graph(fn), rt.array(np.zeros(3))
    f.warm(x)
    assert calls == [1, 2]
    assert np.asarray(x).tolist() == [0] * 3
    assert np.asarray(f(x)).tolist() == [2] * 3
    assert f.stats().replays == 1
    assert calls == [1, 2, 1]


def test_explain_names_the_parts(rt):
    """What a recording is made of can be read: its parts, and what is live."""

    @sw.eager
    def check_norm(x):
        float(x.sum())

    def fn(x):
        h = x * 2
        check_norm(h)
        return h + 1

    f, x = rt.graph(fn), rt.array(np.ones(3))
    for _ in range(4):
        f(x)
    text = f.explain()
    assert "check_norm" in text
    assert "#1/2" in text


def test_driver_calls_of_a_hit(rig):
    """A replay makes one launch a part, and one call more for each copied place."""
    rt = rig.runtime

    @sw.eager
    def scale(x):
        return x

    def fn(x, y):
        h = x * 2
        h = scale(h)
        g = h + y
        scale(g)
        return g * h

    f = rt.graph(fn, fullgraph=True)  # nothing is saved, for a call that strays
    x, y = rt.array(np.ones(3)), rt.array(np.ones(3))
    for _ in range(4):
        f(x, y)
    rig.recorded.reset()
    f(x, y)
    assert rig.recorded.counts() == {"launch_graph": 3}


def test_made_inside_is_refused(rt):
    """An region is made outside: one that is made inside would be the first one's."""

    def fn(x):
        part = sw.eager(lambda y: y * 2)
        return part(x) + 1

    with pytest.raises(sw.CaptureError, match="outside"):
        rt.graph(fn, fullgraph=True)(rt.array(np.ones(3)))


async def _coroutine(x):
    return x


def _generator(x):
    yield x


@pytest.mark.parametrize(
    "fn", [_coroutine, _generator, 3], ids=["coroutine", "generator", "number"]
)
def test_what_cannot_be_an_eager_region(fn):
    """Generators, coroutines and what is no function are refused at decoration."""
    with pytest.raises(sw.MisuseError):
        sw.eager(fn)


def test_events_of_an_earlier_part(agree):
    """An event recorded before a break may be waited for behind it."""

    def program(w):
        one, two = w.stream(), w.stream()
        mark = sw.eager(lambda: None)

        def fn(x):
            with one:
                h = x * 2
                event = one.record()
            mark()
            two.wait(event)
            with two:
                return h + 1

        f = w.graph(fn)
        for _ in range(5):
            yield f(w.values(3))

    assert agree(program).count("replays") >= 2


def test_verified_functions(rt, bits):
    """``verify`` does not run eager regions twice."""
    calls = []

    @sw.eager
    def note(h):
        calls.append(float(h.sum()))
        return h * len(calls)

    f = rt.graph(lambda x: note(x * 2) + x, verify=2)
    x = rt.array(np.arange(3.0))
    for n in range(1, 8):
        assert bits(f(x)) == bits(np.arange(3.0) * 2 * n + np.arange(3.0))
    assert len(calls) == 7


def test_no_file_holds_eager_regions(rt, tmp_path):
    """A file has no Python, so a function with eager regions is not saved."""
    f, x = rt.graph(lambda x: mark(x * 2)), rt.array(np.ones(3))
    mark = sw.eager(lambda x: x + 1)
    f.warm(x)
    with pytest.raises(sw.StoreError, match="eager regions"):
        sw.save(f, tmp_path / "f.sapwood")


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_a_call_strays_inside_another_of_the_same_function(rt):
    """The recording that the outer one is in goes, and keeps nothing from going."""
    what = []

    @sw.eager
    def live(h):
        turn = what.pop() if what else ""
        if turn == "nested":
            what.append("astray")
            f(rt.array(np.ones(3)))
        return h if turn == "astray" else None

    @partial(rt.graph, max_variants=1)
    def f(x):
        h, t = x + 1, x * 3
        live(h)
        return h * 2 + t, t

    x, kept = rt.array(np.ones(3)), []
    for call in range(10):
        if call == 6:
            what.append("nested")
        kept.append(f(x))
        del kept[:-2]
        assert np.asarray(kept[-1][0]).tolist() == [7.0] * 3
