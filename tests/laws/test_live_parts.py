"""Live parts: between recorded parts, on every call, as if nothing were recorded."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import NamedTuple

import numpy as np
import pytest

import sapwood as sw


def test_between_two_recorded_parts(agree):
    """A live part sees the values of every call, once per call; the rest is replayed."""
    counts = {}

    def program(w):
        seen = []

        @sw.eager
        def note(h):
            seen.append(float(h.sum()))

        def fn(x):
            h = x * 2
            note(h)
            return h + 1, x

        f = w.graph(fn)
        x = w.values(4)
        for i in range(6):
            x += i
            y = f(x)
            assert len(seen) == i + 1
            yield y, seen[-1], x
            del y
        counts[w.name] = len(seen)

    world = agree(program)
    assert set(counts.values()) == {6}
    assert (world.count("warmups"), world.count("recordings")) == (1, 1)
    assert world.count("replays") == 4


def test_results_are_copied_in(agree):
    """What a live part returns is an input of what follows, wherever it lies."""

    def program(w):
        @sw.eager
        def clip(h, limit=1.0):
            scale = min(1.0, limit / float(np.abs(h).max()))
            return h * scale

        f = w.graph(lambda x, y: (clip(x * y) + x, clip(h=y * 2, limit=0.5)))
        for _ in range(6):
            yield f(w.values(4), w.values(4))

    assert agree(program).count("replays") >= 3


def test_several_breaks(agree):
    """Three live parts, one in a helper, one called twice, one with no arrays."""

    def program(w):
        seen = []

        @sw.eager
        def note(*values):
            seen.extend(float(v.sum()) for v in values)

        @sw.eager
        def mark():
            seen.append("mark")

        @sw.eager
        def halve(x):
            return x / 2 if float(x[0]) == float(x[0]) else x

        def helper(x):
            mark()
            return x - 1

        def fn(x):
            a = x * 2
            note(a)
            b = helper(a) * a
            c = halve(b)
            note(b, c, x)
            return a, b + c, c

        f = w.graph(fn)
        x = w.values(3)
        kept = []
        for i in range(8):
            x += 1
            kept.append(f(x))
            if i == 5:
                kept.clear()
            yield kept[-1:], list(seen)

    world = agree(program)
    assert world.count("replays") >= 3


def test_a_break_inside_a_nested_graphed_call(agree):
    """Inside a recording a graphed function is its plain one, live parts included."""

    def program(w):
        seen = []

        @sw.eager
        def note(x):
            seen.append(float(x.sum()))

        def inner(x):
            h = x * 3
            note(h)
            return h - 1

        g = w.graph(inner)
        f = w.graph(lambda x: g(x + 1) * g(x))
        x = w.values(3)
        for _ in range(6):
            y, z = f(x), g(x)
            yield y, z, list(seen)

    agree(program)


class Pair(NamedTuple):
    left: object
    right: object


def test_nests_of_results(agree):
    """Tuples, lists, dicts and None of arrays; views; the same array twice."""

    def program(w):
        @sw.eager
        def many(x):
            y = x + 1
            return {"a": y, "b": [y[1:], None, (x * 2).T], "p": Pair(y, x * 0)}

        def fn(x):
            found = many(x * 2)
            y = found["a"]
            y *= 2
            return found, found["b"][0] + found["p"].left[1:], found["b"][2] - 1

        f = w.graph(fn)
        for _ in range(5):
            yield f(w.values(3, 3))

    assert agree(program).count("replays") >= 2


def test_the_array_passed_in_comes_back(agree):
    """A live part that returns its argument, or a view of it, gives the same memory."""

    def program(w):
        @sw.eager
        def clamp(x):
            if float(x.sum()) > 0:
                x *= 0.5
            return x

        @sw.eager
        def tail(x):
            return x[1:]

        def fn(x, y):
            h = x + y
            same = clamp(h)
            same += 1
            end = tail(y)
            end *= 2
            return h, same, y

        f = w.graph(fn)
        for i in range(6):
            x, y = w.values(4), w.values(4)
            yield f(x, y), x, y
            if i == 3:
                yield f(x, y), f(y, x)

    assert agree(program).count("replays") >= 3


def test_writes_in_place(agree):
    """What a live part writes is seen by what follows, and by the caller."""

    def program(w):
        weight = w.values(4)

        @sw.eager
        def write(h, x):
            h[...] = h * 2 if float(h[0]) > 0 else h - 1
            x += 1
            weight[1:] = 7

        def fn(x):
            h = x * weight
            view = h[1:]
            write(h, x)
            x *= 3
            return h + 1, view * 2, x * weight

        f = w.graph(fn)
        for _ in range(4):
            x = w.values(4)
            for _ in range(3):
                yield f(x), x, weight

    assert agree(program).count("replays") >= 6


def test_kept_arrays_never_change(agree):
    """A live part may keep what it is passed: no later call overwrites it."""

    def program(w):
        kept = []

        @sw.eager
        def keep(h):
            kept.append(h[1:])

        def fn(x):
            h = x * 2
            keep(h)
            return h.sum() + x

        f = w.graph(fn)
        outs = []
        x = w.values(4)
        for i in range(24):
            x += 1
            outs.append(f(x))
            if i == 12:
                kept.clear()
                outs.clear()
            yield list(kept), list(outs)

    world = agree(program)
    assert world.count("recordings") <= 5


def test_live_parts_may_write_python(agree):
    """Counters, lists and attributes: a live part is ordinary Python."""

    def program(w):
        class Net:
            def __init__(self):
                self.n, self.log, self.weight = 0, [], w.values(3)

            @sw.eager
            def note(self, h, *, name):
                self.n += 1
                self.log.append((name, float(h.max())))

            def step(self, x):
                h = x * self.weight
                self.note(h, name="h")
                self.weight += h
                return h - 1

        if not w.plain:
            Net.step = w.rt.graph(Net.step)
        nets = Net(), Net()
        x = w.values(3)
        for _ in range(5):
            for net in nets:
                yield net.step(x), net.n, net.log, net.weight
        if w.replayed:
            assert nets[0].step.stats().replays == 3

    agree(program)


def test_instances_are_held_weakly(rig):
    """A live method does not keep its object alive, nor do recordings with it."""
    rt = rig.runtime

    class Net:
        @sw.eager
        def note(self, x, other):
            return x * float(x.sum())

        @rt.graph
        def step(self, x):
            return self.note(x * 2, self) + 1

    x = rt.array(np.ones(3))
    for _ in range(3):
        net = Net()
        for _ in range(4):
            assert np.asarray(net.step(x)).tolist() == [13] * 3
        assert net.step.stats().replays == 2
        gone = weakref.ref(net)
        del net
        gc.collect()
        assert gone() is None
    x += 1
    assert rt.memory_stats()["ranges"] == 0


class Mine(Exception):
    """An exception of the user."""


@pytest.mark.parametrize("when", [0, 1, 2, 4])
def test_a_users_exception_leaves_unchanged(rt, bits, when):
    """The part before has run, the part behind has not, and the next call is right."""
    calls, x, y = [], rt.array(np.ones(3)), np.ones(3)

    @sw.eager
    def check(h):
        calls.append(float(h.sum()))
        if len(calls) == when + 1:
            raise Mine("as thrown", 3)

    def fn(x):
        x += 1
        check(x * 2)
        x *= 2
        return x - 1

    f = rt.graph(fn)
    for call in range(8):
        if call == when:
            with pytest.raises(Mine, match="as thrown") as caught:
                f(x)
            assert caught.value.args == ("as thrown", 3)
            assert caught.value.__cause__ is None
            del caught
            y += 1
        else:
            out = f(x)
            y = (y + 1) * 2
            assert bits(out) == bits(y - 1)
        assert bits(x) == bits(y)
    assert f.stats().replays >= 3


OTHERS = {
    "shape": lambda x: x[1:],
    "dtype": lambda x: x.astype(np.float32),
    "nesting": lambda x: (x * 1,),
    "none": lambda x: None,
    "alias": lambda x: x,
    "float": lambda x: float(x.sum()),
    "text": lambda x: "no",
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("when", [1, 2, 4])
def test_another_kind_of_result(rt, other, when, bits):
    """Anything but the recorded signature is refused, by name; the state is as left."""
    calls, x, y = [], rt.array(np.arange(3.0)), np.arange(3.0)

    @sw.eager
    def measure(x):
        calls.append(x.size)
        return OTHERS[other](x) if len(calls) == when + 1 else x * 2

    def fn(x):
        x += 1
        x += measure(x)
        return x * 1

    f = rt.graph(fn)
    for call in range(7):
        y += 1
        if call == when:
            with pytest.raises(sw.CaptureError, match=r"measure.*first part has run"):
                f(x)
        else:
            y += y * 2
            assert bits(f(x)) == bits(y)
        gc.collect()
        assert bits(x) == bits(y)
    assert f.stats().replays >= 2


@pytest.mark.parametrize(
    "wrong", [1.5, True, "text", np.ones(2), [1, 2], object()], ids=str
)
def test_plain_results_are_refused_on_call_one(rt, wrong):
    """A plain value would be the same in every replay: it is refused at once."""

    @sw.eager
    def measure(x):
        return wrong

    def fn(x):
        measure(x + 1)
        return x * 2

    x = rt.array(np.ones(3))
    with pytest.raises(sw.CaptureError, match=r"measure.*first part has run") as caught:
        rt.graph(fn)(x)
    assert "test_live_parts.py" in caught.value.where
    f = rt.graph(fn, on_unsupported="eager")
    for _ in range(4):
        assert np.asarray(f(x)).tolist() == [2] * 3
    assert f.stats().passed_through == 4


def test_python_writes_of_recorded_parts_are_errors(rt):
    """Only live parts may write plain values: before and behind them nobody may."""
    log = []

    @sw.eager
    def note(x):
        log.append(float(x.sum()))

    counts = {"n": 0, "m": 0}

    def before(x):
        counts["n"] += 1
        note(x)
        return x + 1

    def behind(x):
        note(x)
        counts["m"] += 1
        return x + 1

    x = rt.array(np.ones(3))
    for fn, key in ((before, "n"), (behind, "m")):
        with pytest.raises(sw.CaptureError, match=key):
            rt.graph(fn)(x)
