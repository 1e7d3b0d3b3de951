"""Law 9, arrays: those a function reads besides its arguments are followed."""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass, field

import numpy as np
import pytest

WEIGHT = None


class Layer:
    def __init__(self, weight):
        self.weight, self.rate = weight, 0.5

    def __call__(self, x):
        return x * self.weight * self.rate


@pytest.fixture(autouse=True)
def _restore(monkeypatch):
    """Put the global that these tests change back."""
    monkeypatch.setitem(globals(), "WEIGHT", None)


@pytest.mark.every_framework
def test_a_replaced_closed_over_array_is_noticed(agree):
    """A name bound to another array is another array, at once."""

    def program(w):
        weight = w.values(4)
        f, x = w.graph(lambda x: x * weight), w.values(4)
        for i in range(18):
            if i % 3 == 0:
                weight = w.values(4)
            yield f(x), weight

    assert agree(program).count("replays") > 0


@pytest.mark.every_framework
def test_an_array_changed_in_place_is_seen(agree):
    """An array's contents are read by every replay, without a new recording."""

    def program(w):
        weight, holder = w.values(4), {"bias": [w.values(4)]}
        f, x = w.graph(lambda x: x * weight + holder["bias"][0]), w.values(4)
        for i in range(8):
            weight += i
            holder["bias"][0][i % 4] = -i
            yield f(x)

    world = agree(program)
    assert world.count("recordings") == 1
    assert world.count("copied_bytes") == 0


@pytest.mark.every_framework
def test_a_replaced_global_array_is_noticed(agree):
    """The same for globals."""

    def program(w):
        f, x = w.graph(lambda x: (x * WEIGHT).sum()), w.values(4)
        for i in range(18):
            if i % 3 == 0:
                globals()["WEIGHT"] = w.values(4)
            WEIGHT[1] = i
            yield f(x)
        globals()["WEIGHT"] = None

    agree(program)


def _attribute(layer, w):
    layer.weight = w.values(4)


def _in_place(layer, _):
    layer.weight *= 2


def _other_shape(layer, w):
    layer.weight = w.values(2, 4)


def _other_dtype(layer, w):
    layer.weight = w.values(4, dtype="float32" if w.itemsize == 8 else "float64")


def _a_view(layer, w):
    layer.weight = w.values(8)[::2]


def _a_number(layer, _):
    layer.weight = 3


@pytest.mark.every_framework
def test_attribute_arrays_are_guarded(changing):
    """An object's array may be written, replaced, reshaped or become a number."""

    def make(w):
        layer = Layer(w.values(4))
        return lambda x: layer(x), layer

    changes = (_in_place, _attribute, _other_shape, _other_dtype, _a_view, _a_number)
    changing(make, changes)


@pytest.mark.every_framework
def test_arrays_in_a_growing_list_are_found(changing):
    """A list of parameters that grows, shrinks and changes its order is followed."""

    def make(w):
        parts = [w.values(4), w.values(4)]
        return lambda x: sum((part * x for part in parts), x), parts

    changes = (
        lambda parts, w: parts.append(w.values(4)),
        lambda parts, _: parts.reverse(),
        lambda parts, _: parts.pop(),
        lambda parts, w: parts.__setitem__(0, w.values(4)),
        lambda parts, _: parts.__setitem__(1, parts[0]),
    )
    changing(make, changes)


@pytest.mark.every_framework
def test_arrays_in_dicts_objects_and_partials_are_found(changing):
    """Wherever code can reach an array by names, its replacement is noticed."""

    @dataclass
    class Deep:
        table: dict = field(default_factory=dict)

    def make(w):
        deep = Deep({"a": (w.values(4), [w.values(4)])})

        def scaled(part, x):
            return x * part

        state = types.SimpleNamespace(deep=deep, bound=w.values(4))
        state.call = functools.partial(scaled, state.bound)

        def f(x):
            first, (second,) = state.deep.table["a"]
            return first * x + second, state.call(x)

        return f, state

    def replace_partial(state, w):
        state.call = functools.partial(state.call.func, w.values(4))

    def write_partial(state, _):
        state.bound[0] = 5

    def replace_item(state, w):
        state.deep.table["a"] = (w.values(4), [w.values(4)])

    def replace_inner(state, w):
        state.deep.table["a"][1][0] = w.values(4)

    changing(make, (replace_item, replace_inner, replace_partial, write_partial))


@pytest.mark.every_framework
@pytest.mark.minimal
def test_an_ambient_array_that_moves_on_every_call(agree):
    """``self.h`` replaced before every call is right, and is not recorded for ever."""

    def program(w):
        layer, kept = Layer(None), []
        f, x = w.graph(lambda x: layer(x)), w.values(4)
        for i in range(w.framework.anew):
            layer.weight = w.values(4)
            kept.append(layer.weight if i % 2 else None)
            yield f(x)

    world = agree(program)
    assert world.count("passed_through") == 0
    if world.framework.xp is np:
        assert world.count("recordings") <= 10


@pytest.mark.every_framework
def test_an_ambient_output_of_a_recording(agree):
    """An output of one function, kept in an attribute that another one reads."""

    def program(w):
        layer = Layer(None)
        make, f = w.graph(lambda x: x * 2), w.graph(lambda x: layer(x))
        x = w.values(4)
        for _ in range(12):
            layer.weight = make(x)
            yield f(x), layer.weight
            x += 1

    world = agree(program)
    assert world.count("recordings") <= 10
    assert world.count("replays") > 0


@pytest.mark.every_framework
def test_ambient_arrays_that_begin_to_overlap(changing, framework):
    """Whether two ambient arrays share memory is part of what is guarded."""

    def make(w):
        state = types.SimpleNamespace(a=w.values(4), b=w.values(4))

        def f(x):
            state.a += x
            return state.a + state.b

        return f, state

    def part(state, w):
        state.a, state.b = w.values(4), w.values(4)

    def join(state, _):
        state.b = state.a

    def turn(state, _):
        state.b = state.a[::-1]

    def shift(state, w):
        both = w.values(6)
        state.a, state.b = both[:4], both[2:]

    def copied(state, _):
        state.b = state.b * 1

    overlap = (turn, shift) if framework.steps_back else (shift,)
    changing(make, (part, join, part, *overlap, copied))


@pytest.mark.every_framework
def test_an_ambient_array_that_becomes_the_argument(agree):
    """An attribute that is sometimes the very argument is followed."""

    def program(w):
        layer = Layer(w.values(4))

        def fn(x):
            x += 1
            return layer.weight * 2, x

        f = w.graph(fn)
        a, b = w.values(4), layer.weight
        for i in range(24):
            layer.weight = (a, b)[i // 3 % 2]
            yield f((a, b)[i // 2 % 2]), a, b

    agree(program)


@pytest.mark.every_framework
def test_aliasing_may_differ_between_warm_up_and_recording(agree):
    """An ambient array that was the argument in the warm-up, and is not now."""

    def program(w):
        layer, a, others = Layer(w.values(3)), w.values(3), [w.values(3), w.values(3)]

        def fn(x):
            layer.weight[...] = x

        f = w.graph(fn)
        layer.weight = a
        f(a)
        for i in range(12):
            layer.weight = a if i % 4 == 3 else others[i % 2]
            f(a)
            yield layer.weight, a

    assert agree(program).count("replays") > 0


def test_overlap_may_differ_between_warm_up_and_recording(agree):
    """The same with bytes that overlap in part, and with two ambient arrays."""

    def program(w):
        o, a = types.SimpleNamespace(w=w.values(8), v=w.values(8)), w.values(8)

        def fn(x):
            o.w[1:] = x[:-1]
            o.v[1:] += o.w[:-1]

        f = w.graph(fn)
        o.w = o.v = a
        f(a)
        for _ in range(5):
            o.w, o.v = w.values(8), w.values(8)
            f(a)
            yield o.w, o.v, a

    assert agree(program).count("replays") > 0
