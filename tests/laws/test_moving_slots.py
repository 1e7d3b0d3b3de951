"""State that a function carries in slots, and that is elsewhere in every call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import sapwood as sw
from tests.support.frameworks import on_host

CALLS = 16


def _bound_anew(w):
    state = SimpleNamespace(h=w.values(4))

    def fn(x):
        state.h = state.h * 0.5 + x
        return state.h.sum() + x

    return fn, lambda: (w.values(4),), lambda: state.h


def _returned(w):
    state = {"h": w.values(4)}

    def fn(x):
        state["h"] = state["h"] * 0.5 + x
        return state["h"]

    return fn, lambda: (w.values(4),), lambda: state["h"]


def _in_a_list(w):
    z = [w.values(4), w.values(4)]

    def fn(x):
        y = x + z[0]
        z[0] = x * 2 + z[1]
        z[1] = y * 0.25
        return y

    return fn, lambda: (w.values(4),), lambda: z


def _swapped(w):
    state = SimpleNamespace(u=w.values(4), v=w.values(4))

    def fn(x):
        state.v[...] = state.u * 0.5 + x
        state.u, state.v = state.v, state.u
        return state.u * 2

    return fn, lambda: (w.values(4),), lambda: (state.u, state.v)


def _replaced(w):
    state = SimpleNamespace(w=w.values(4))

    def args():
        state.w = w.values(4)
        return (w.values(4),)

    return lambda x: x * state.w + 1, args, lambda: state.w


def _written(w):
    state = SimpleNamespace(w=w.values(4))

    def args():
        state.w = w.values(4)
        return (w.values(4),)

    def fn(x):
        state.w *= x
        return state.w.sum() + x

    return fn, args, lambda: state.w


def _by_two_ways(w):
    state = SimpleNamespace(a=w.values(4), b=None)
    state.b = {"a": state.a}

    def args():
        state.a = state.b["a"] = w.values(4)
        return (w.values(4),)

    def fn(x):
        state.a += x
        return state.b["a"] * 2, state.a

    return fn, args, lambda: state.b["a"]


def _views(w):
    state = SimpleNamespace(whole=w.values(8), part=None)

    def args():
        state.whole = w.values(8)
        state.part = state.whole[2:6]
        return (w.values(4),)

    def fn(x):
        state.part += x
        return state.whole * 2, x + 1

    return fn, args, lambda: (state.whole, state.part)


def _fed_back(w):
    state = {"y": w.values(4)}

    def fn(x):
        state["y"] = x * 0.5 + 1
        return state["y"]

    return fn, lambda: (state["y"],), lambda: state["y"]


def _fed_back_and_read(w):
    state = {"y": w.values(4)}

    def fn(x):
        x += 1
        state["y"] = x * 0.5 + state["y"]
        return state["y"]

    return fn, lambda: (state["y"],), lambda: state["y"]


def _in_an_argument(w):
    state = SimpleNamespace(h=w.values(4))

    def fn(holder, x):
        holder.h = holder.h * 0.5 + x
        return x + holder.h

    return fn, lambda: (state, w.values(4)), lambda: state.h


def _in_a_tuple(w):
    state = SimpleNamespace(hc=(w.values(4), w.values(4)))

    def fn(x):
        h, c = state.hc
        c = c * 0.5 + x
        h = h * 0.25 + c
        state.hc = h, c
        return h.sum() + x, state.hc

    return fn, lambda: (w.values(4),), lambda: state.hc


class Pair(NamedTuple):
    """Two arrays by their names."""

    left: Any
    right: Any


def _in_a_named_tuple(w):
    box = [Pair(w.values(4), w.values(4))]

    def fn(x):
        pair = box[0]
        box[0] = Pair(pair.right + x, pair.left * 0.5)
        return pair.left + box[0].right

    return fn, lambda: (w.values(4),), lambda: (type(box[0]), *box[0])


def _in_a_tuple_in_a_tuple(w):
    layers = {"past": ((w.values(4), w.values(4)), "name", [1], (w.values(4),))}

    def fn(x):
        (k, v), name, plain, (last,) = layers["past"]
        layers["past"] = (k + x, v * 0.5), name, plain, (last,)
        return k * v + last

    return fn, lambda: (w.values(4),), lambda: layers["past"]


def _in_tuples_that_swap(w):
    state = SimpleNamespace(u=(w.values(4), 1), v=(w.values(4), 1))

    def fn(x):
        state.u, state.v = state.v, (state.u[0] * 0.5 + x, 1)
        return state.v[0] * 2

    return fn, lambda: (w.values(4),), lambda: (state.u, state.v)


def _in_one_tuple_twice(w):
    state = {"a": None, "b": None}

    def args():
        one = w.values(4)
        state["a"] = state["b"] = (one, one)
        return (w.values(4),)

    def fn(x):
        state["a"][0][...] += x
        return state["b"][1] * 2

    return fn, args, lambda: (state["a"], state["b"])


def _bound_twice(w):
    state = {"a": (w.values(4), 1), "b": None}

    def fn(x):
        state["a"] = state["b"] = (state["a"][0] * 0.5 + x, 1)
        return x * 2

    return fn, lambda: (w.values(4),), lambda: (state["a"], state["b"])


def _counted(w):
    state = SimpleNamespace(h=(w.values(4), 0))

    def fn(x):
        h, count = state.h
        state.h = h * 0.5 + x, count + 1
        return h * 2

    return fn, lambda: (w.values(4),), lambda: state.h


REPLAYED = [
    *(_bound_anew, _returned, _in_a_list, _swapped, _replaced, _written, _by_two_ways),
    *(_views, _fed_back, _in_an_argument, _in_a_tuple, _in_a_named_tuple),
    *(_in_a_tuple_in_a_tuple, _in_tuples_that_swap, _in_one_tuple_twice),
]


def program(make, *, keeps):
    """Return a program of calls whose results are kept, all or the last."""

    def run(w):
        fn, args, shown = make(w)
        f, kept = w.graph(fn), []
        for _ in range(CALLS):
            kept.append(f(*args()))
            yield kept, shown()
            if not keeps:
                kept.clear()

    return run


@pytest.mark.every_framework
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("make", REPLAYED)
def test_it_is_replayed_after_a_few_calls(agree, make, keeps):
    """Whatever is bound anew by the function or between the calls, kept or not."""
    world = agree(program(make, keeps=keeps))
    assert world.count("recordings") <= 7
    assert world.count("replays") >= CALLS - 9


@pytest.mark.every_framework
@pytest.mark.parametrize("keeps", [False, True])
def test_an_argument_that_is_also_read(agree, keeps):
    """Both are one array: no copy of it stands in for one of them."""
    agree(program(_fed_back_and_read, keeps=keeps))


@pytest.mark.every_framework
@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("make", [_bound_twice, _counted])
def test_tuples_that_no_replay_can_make_anew(agree, make):
    """One that is to be the same in two places, and one in which a count goes on."""
    assert agree(program(make, keeps=True)).count("replays") == 0


@pytest.mark.every_framework
def test_slots_that_part_and_meet(agree):
    """Two slots that hold one array, then two, then one again."""

    def run(w):
        state = SimpleNamespace(a=w.values(4), b=w.values(4))

        def fn(x):
            state.a += x
            return state.b * 2

        f = w.graph(fn)
        for i in range(CALLS):
            state.a = w.values(4)
            state.b = state.a if i % 5 > 2 else w.values(4)
            yield f(w.values(4)), state.a, state.b

    assert agree(run).count("replays") >= 4


@pytest.mark.every_framework
def test_an_argument_that_is_in_a_slot_at_times(agree):
    """What was recorded with both apart is not replayed where one is the other."""

    def run(w):
        state = SimpleNamespace(h=w.values(4))

        def fn(x):
            x += 1
            return state.h * 2

        f = w.graph(fn)
        for i in range(CALLS):
            x = w.values(4)
            state.h = x if i % 4 == 3 else w.values(4)
            yield f(x), x, state.h

    assert agree(run).count("replays") >= 4


@pytest.mark.every_framework
@pytest.mark.parametrize("parts", [False, True])
def test_a_tuple_is_the_same_object_behind_a_call(rt, parts):
    """Though its arrays were stood in for while the function was captured."""
    state = {"a": None, "b": None}

    def look(y):
        assert y.shape == (3,)

    pause = sw.eager(look) if parts else look

    def fn(x):
        y = state["a"][0] * state["b"][1][0]
        pause(y)
        return y + x

    f = rt.graph(fn)
    x = rt.array(np.arange(3.0))
    for n in range(CALLS):
        one = rt.array(np.arange(3.0) + n)
        whole = state["a"] = state["b"] = (one, (one, n > 100))
        assert on_host(f(x)).tolist() == [(i + n) ** 2 + i for i in range(3)]
        assert state["a"] is whole is state["b"]
    assert f.stats().replays > 0
