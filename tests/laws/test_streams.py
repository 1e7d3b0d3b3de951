"""Law 13, streams: what depends on what is ordered, under every schedule."""

from __future__ import annotations

import gc
import random
from contextlib import nullcontext

import numpy as np
import pytest

from tests.support.frameworks import on_host

pytestmark = pytest.mark.every_kind


def _work(x, y):
    h = x * 2
    h += y
    return h, (h * h).sum()


def _advance(state, x):
    state += x
    return state.sum()


def _small(total, w):
    """Return a sum of squares as a number that a few of make no great one."""
    return total * (0.01 / w.framework.lasting)


@pytest.fixture(
    params=["the runtime's", pytest.param("torch's", marks=pytest.mark.only("torch"))]
)
def streams(request):
    """Return what makes so many streams, ordered by the runtime or by hand.

    Whoever asks for them drops them, too, before the runtime is closed.
    """

    def streams(w, count=2):
        if request.param == "torch's":
            return [w.framework.own_stream() for _ in range(count)]
        return [w.stream() for _ in range(count)]

    return streams


@pytest.mark.every_framework
def test_two_streams_with_dependent_data(agree, streams):
    """Replays and eager work on two streams read what the other has written."""

    def program(w):
        one, two = streams(w)
        f, g = w.graph(_work), w.graph(lambda h: h - 1)
        x, y = w.values(w.framework.lasting), w.values(w.framework.lasting)
        for _ in range(8):
            w.hold(x, y)
            with one:
                h, total = f(x, y)
            with two:
                x = g(h) * 0.25
                y = y + _small(total, w)
        yield x, y, h, total

    assert agree(program).count("replays") > 0


@pytest.mark.every_framework
def test_a_read_is_over_before_its_bytes_are_written(agree, streams):
    """``y`` read on one stream, dropped, and overwritten from another."""

    def program(w):
        one, two = streams(w)
        f, x = w.graph(lambda x: x + 1), w.values(w.framework.lasting)
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

    assert agree(program).count("replays") > 8


@pytest.mark.every_framework
def test_a_replay_waits_for_readers_of_what_it_writes(agree, streams):
    """An argument that another stream still reads is written only afterwards."""

    def program(w):
        (one, two), size = streams(w), w.framework.lasting
        f, state, x = w.graph(_advance), w.values(size), w.values(size)
        out = []
        for _ in range(10):
            w.hold(x)
            with two:
                out.append(state * 3)
            with one:
                total = f(state, x)
            with two:
                x = x * 0.5 + _small(total, w)
        yield out, state, x

    assert agree(program).count("replays") > 0


@pytest.mark.parametrize("readers", [1, 2])
def test_a_replay_that_gives_nothing_waits_for_readers(agree, readers):
    """What orders it is the array that it writes, and nothing else that they share."""

    def advance(state):
        state *= 0.5

    def program(w):
        own, others = w.stream(), [w.stream() for _ in range(readers)]
        f, state, out = w.graph(advance), w.values(32), []
        for _ in range(12):
            for other in others:
                with other:
                    out.append(state * 3)
            with own:
                f(state)
        yield out, state

    assert agree(program).count("replays") >= 9


def test_what_nobody_had_written_is_waited_for(rt):
    """Replays of one stream read it, and then another stream is the first to write."""
    one, two = rt.stream(), rt.stream()
    f, like = rt.graph(lambda x: x * 2), rt.array(np.ones(32))
    given = [np.empty_like(like) for _ in range(4)]
    for x in given:
        with one:
            for _ in range(6):
                f(x)
        with two:
            x[...] = like
        with one:
            y = f(x) + 0
        assert np.asarray(y).tolist() == [2.0] * 32


@pytest.mark.every_framework
def test_a_copied_argument_is_read_before_it_is_written(agree, streams):
    """Arguments that replays copy in may be overwritten from another stream at once."""

    def program(w):
        one, two = streams(w)
        f, y, out = w.graph(_work), w.values(w.framework.lasting), []
        for i in range(10):
            with one:
                x = w.values(w.framework.lasting)
                w.hold(x)
                out.append(f(x, y))
            with two:
                x += 100
                y[i] = i
                del x
        yield out, y

    assert agree(program).count("replays") > 0


@pytest.mark.every_framework
def test_warm_up_record_and_replay_on_different_streams(agree, streams):
    """Where a recording was made says nothing about where it runs."""

    def program(w):
        around = *streams(w), nullcontext()
        f, size = w.graph(_work), w.framework.lasting
        x, y = w.values(size), w.values(size)
        for i in range(12):
            with around[i % 3]:
                h, total = f(x, y)
            if i % 2:
                x += 1
            else:
                with around[(i + 1) % 3]:
                    y -= _small(total, w)
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


@pytest.mark.parametrize("fresh", [True, False])
def test_streams_inside_a_function_that_end_apart(agree, fresh):
    """Nothing follows what they do last: replays are over when all of it is."""

    def program(w):
        side, more = w.stream(), w.stream()

        def fn(x, y, z):
            x *= 2.0
            with side:
                y += 1.0
            with more:
                z -= 1.0

        f, args = w.graph(fn), [w.values(8) for _ in range(3)]
        for _ in range(8):
            f(*args)
            yield args
            if fresh:
                args = [w.values(8) for _ in range(3)]

    assert agree(program).count("replays") > 4


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


@pytest.mark.every_framework
def test_random_programs_on_three_streams(agree, streams):
    """Any order of replays, eager work, writes and drops over three, and the usual."""

    def program(w):
        draw = random.Random(21)
        around = *streams(w, 3), nullcontext()
        fs = [
            w.graph(lambda a, b: (a + b) * 0.5),
            w.graph(lambda a, b: (a - b, a * 0.5)[draw_free(a)]),
            w.graph(_in_place),
        ]
        pool = [w.values(w.framework.lasting) for _ in range(5)]
        for _ in range(150):
            a, b, to = (draw.randrange(5) for _ in range(3))
            with draw.choice(around):
                act = draw.randrange(6)
                w.hold(pool[to], last=30)
                if act < 3:
                    pool[to] = fs[act](pool[a], pool[b])
                elif act == 3:
                    pool[to] = pool[a] * 0.5 + w.framework.turned(pool[b]) * 0.25
                elif act == 4:
                    pool[to] += pool[a] * 0.125
                else:
                    pool[to] = pool[a]
        yield pool

    assert agree(program).count("replays") > 10


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


@pytest.mark.minimal
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


@pytest.mark.parametrize("graphed", [True, False])
@pytest.mark.parametrize("marked", [True, False])
def test_a_stream_that_dies_in_a_cycle_with_its_arrays(rt, bits, graphed, marked):
    """Whoever gets their memory next is after the work that is pending on it."""

    def fn(x):
        return x * 3

    f = rt.graph(fn) if graphed else fn
    for i in range(12):
        stream, cycle = rt.stream(), []
        with stream:
            x = rt.array(np.arange(64.0)) + 1
            if marked:
                x * 2
        if marked:
            x * 2
        with stream:
            cycle.extend([cycle, stream, f(x), x])
        del stream, x, cycle
        gc.collect()
        x = rt.array(np.full(64, float(i)))
        kept = [x, f(x), x + 1]
        rt.synchronize()
        for array, value in zip(kept, (i, i * 3, i + 1), strict=True):
            assert bits(array)[0][-1] == np.full(64, float(value)).tobytes()
        del x, kept, array


def test_memory_goes_although_its_streams_have(make_rig):
    """A runtime that closes waits for streams that are gone."""
    rt = make_rig().runtime
    f = rt.graph(lambda x: x * 2)
    for size in (100_000, 1_000):
        stream, cycle = rt.stream(), []
        with stream:
            x = rt.array(np.ones(size))
            cycle.extend([cycle, stream, f(x), f(x), f(x) + x, x])
        del stream, x, cycle
        gc.collect()
    pages = rt.memory_stats()["heap.pages"]
    assert pages
    rt.close()
    assert rt.memory_stats()["heap.pages"] == 0


def test_memory_is_short_after_its_streams_have_gone(make_rig):
    """What is unmapped for others is waited for, though nobody has its stream."""
    rt = make_rig(total=1 << 22).runtime
    for i in range(4):
        stream, cycle = rt.stream(), []
        with stream:
            x = rt.array(np.full(60_000 + 20_000 * i, float(i)))
            cycle.extend([cycle, stream, x, x + 1])
        del stream, x, cycle
        gc.collect()
        y = rt.array(np.full(250_000, float(i))) + 1
        assert np.asarray(y[-2:]).tolist() == [i + 1.0] * 2
        del y
    rt.synchronize()


@pytest.mark.every_framework
def test_a_stream_that_is_dropped(rt, framework):
    """Streams may die while their work is pending."""
    host = np.arange(framework.lasting, dtype=framework.dtype)
    f, x = rt.graph(lambda x: x * 2), framework.array(rt, host)
    for _ in range(8):
        stream = rt.stream()
        with stream:
            y = f(x)
            z = y + 1
        after = y + 2
        del stream, y
        gc.collect()
        assert on_host(after).tobytes() == (host * 2 + 2).tobytes()
    assert on_host(z).tobytes() == (host * 2 + 1).tobytes()
