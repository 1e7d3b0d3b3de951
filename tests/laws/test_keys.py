"""Law 9, of what the keys of dicts hold: it is read, and a change of it is a miss."""

from __future__ import annotations

import collections
import dataclasses
import types
import weakref

import numpy as np
import pytest

import sapwood as sw


class Layer:
    """Something with a weight, told from others by being itself."""

    def __init__(self, w):
        self.w = w


class Named:
    """Something that is equal to what has its name."""

    def __init__(self, name):
        self.name = name

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return self.name == other.name


@dataclasses.dataclass(frozen=True, eq=False)
class Frozen:
    """Something that cannot be bound anew, and holds what can be."""

    inner: Layer
    several: list


class Own(dict):
    """A dict of the user's."""


SCALE = 1.0


def _scaled(x):
    return x * SCALE


class _Functions(types.SimpleNamespace):
    @property
    def w(self):
        return SCALE

    @w.setter
    def w(self, value):
        globals()["SCALE"] = value


def _over(table, x):
    for layer, k in table.items():
        x = x * layer.w * k
    return x


def _layers(make):
    layer = Layer(1.0)
    return make({layer: 3.0}), layer, _over


def _weak_keys():
    layer = Layer(1.0)
    held = weakref.WeakKeyDictionary()
    held[layer] = 3.0
    return held, layer, _over


def _weak_values():
    layer, value = Layer(1.0), Layer(3.0)
    held = weakref.WeakValueDictionary({layer: value})

    def over(table, x):
        for each, other in table.items():
            x = x * each.w * other.w
        return x * value.w

    return held, layer, over


def _functions():
    def over(table, x):
        for fn, k in table.items():
            x = fn(x) * k
        return x

    return {_scaled: 3.0}, _Functions(), over


def _tuples():
    layer = Layer(1.0)

    def over(table, x):
        for (each, n), k in table.items():
            x = x * each.w * k * n
        return x

    return {(layer, 2): 3.0}, layer, over


def _nested_tuples():
    layer = Layer(1.0)

    def over(table, x):
        for (n, (each,)), k in table.items():
            x = x * each.w * k * n
        return x

    return {(2, (layer,)): 3.0}, layer, over


def _frozen():
    layer = Layer(1.0)

    def over(table, x):
        for each, k in table.items():
            x = x * each.inner.w * each.several[0].w * k
        return x

    return {Frozen(layer, [layer]): 3.0}, layer, over


def _classes():
    class Kind:
        w = 1.0

    return {Kind: 3.0}, Kind, _over


def _equality():
    one, named = Named("one"), types.SimpleNamespace(w="one")

    class Key(Named):
        @property
        def name(self):
            return named.w

        @name.setter
        def name(self, _):
            pass

    def over(table, x):
        return x * table.get(one, 2.0)

    key = Key("one")
    return {key: 3.0}, named, over


def _keys_alone():
    layer = Layer(1.0)

    def over(table, x):
        for each in table.keys():  # noqa: SIM118 - what keys() gives is read
            x = x * each.w
        return x

    return {layer: 3.0}, layer, over


TABLES = {
    "dict": lambda: _layers(dict),
    "ordered dict": lambda: _layers(collections.OrderedDict),
    "defaultdict": lambda: _layers(lambda d: collections.defaultdict(float, d)),
    "counter": lambda: _layers(collections.Counter),
    "mapping proxy": lambda: _layers(types.MappingProxyType),
    "user dict": lambda: _layers(collections.UserDict),
    "one's own dict": lambda: _layers(Own),
    "chain": lambda: _layers(collections.ChainMap),
    "weak keys": _weak_keys,
    "weak values": _weak_values,
    "functions": _functions,
    "tuples": _tuples,
    "nested tuples": _nested_tuples,
    "frozen dataclass": _frozen,
    "classes": _classes,
    "equality": _equality,
    "keys alone": _keys_alone,
}

ARGUMENTS = ["dict", "ordered dict", "functions", "tuples", "nested tuples"]
ARGUMENTS += ["frozen dataclass", "classes", "equality", "keys alone"]


def _check(call, plain, thing):
    values = ("one", "two") if thing.w == "one" else (1.0, 5.0)
    for value in (*values, *values):
        thing.w = value
        expected = np.asarray(plain()).tolist()
        for k in range(12):
            assert np.asarray(call()).tolist() == expected, (value, k)
    thing.w = values[0]


@pytest.mark.parametrize("kind", TABLES)
def test_what_keys_hold_is_guarded(rt, kind):
    """Whichever dict they are in, and however it is reached."""
    table, thing, over = TABLES[kind]()
    f = rt.graph(lambda x: over(table, x))
    x = rt.array(np.arange(3.0))
    _check(lambda: f(x), lambda: over(table, x), thing)
    assert f.stats().replays > 20


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_what_keys_of_an_argument_hold_is_guarded(rt, kind):
    """The signature says which keys they are, not what is in them."""
    table, thing, over = TABLES[kind]()
    f = rt.graph(lambda x, several: over(several[0], x))
    x = rt.array(np.arange(3.0))
    _check(lambda: f(x, [table]), lambda: over(table, x), thing)
    assert f.stats().replays > 20


def test_an_argument_that_is_made_anew(rt):
    """Its keys are the same objects, or equal tuples of these."""
    layer = Layer(2.0)

    def over(table, x):
        for (each, n), k in table.items():
            x = x * each.w * k * n
        return x

    f = rt.graph(over)
    x = rt.array(np.ones(3))
    for w in (2.0, 5.0, 2.0, 5.0):
        layer.w = w
        for _ in range(8):
            assert np.asarray(f({(layer, 2): 3.0}, x)).tolist() == [6 * w] * 3
    assert f.stats().recordings == 2


def test_a_new_key_with_an_array_is_bound(rt):
    """Which keys there are is not said twice."""
    first, second = Layer(1.0), Layer(2.0)
    table = {first: rt.array(np.ones(3)), "plain": 1.0}

    def fn(x):
        table[second] = x * first.w
        return table[second] + table[first]

    f = rt.graph(fn)
    for k in range(8):
        x = rt.array(np.arange(3.0) + k)
        table.pop(second, None)
        assert np.asarray(f(x)).tolist() == (np.arange(3.0) + k + 1).tolist()
        assert np.asarray(table[second]).tolist() == (np.arange(3.0) + k).tolist()


def test_what_is_written_to_a_key_is_refused(rt):
    """By the name of the slot, as anywhere else."""
    layer = Layer(1.0)
    table = {layer: 3.0}

    def fn(x):
        for each in table:
            each.w *= 2
        return x * 2

    f, x = rt.graph(fn, fullgraph=True), rt.array(np.ones(3))
    with pytest.raises(sw.CaptureError, match=r"\[\*table\]\[0\].w"):
        for _ in range(10):
            f(x)


def test_a_key_that_dies_is_no_write(rt):
    """A weak dict that loses what nobody reads any more."""
    held = weakref.WeakKeyDictionary()
    layers = [Layer(1.0), Layer(2.0), Layer(3.0)]
    held.update({layer: layer.w for layer in layers})

    def fn(x):
        for layer, k in list(held.items()):
            x = x * layer.w * k
        return x

    f = rt.graph(fn)
    x = rt.array(np.ones(3))
    for expected in (36.0, 4.0, 1.0):
        for _ in range(5):
            assert np.asarray(f(x)).tolist() == [expected] * 3
        layers.pop()


def test_arrays_within_keys(rt):
    """They are read like those of any slot, and asked for by being themselves."""
    p, q = rt.array(np.ones(3)), rt.array(np.ones(3) * 2)
    if type(p).__hash__ is None:
        pytest.skip("these arrays cannot be keys")
    table = {(p, 1): 3.0, (q, 2): 5.0}

    def fn(x):
        for (array, n), k in table.items():
            x = x + array * n * k
        return x * table.get((x, 1), 1.0)

    def get(x):
        return x * table.get((x, 1), 7.0)

    x = rt.array(np.ones(3))
    for plain in (fn, get):
        f = rt.graph(plain)
        for given in [x] * 4 + [p] * 4 + [q] * 4 + [x, p, q]:
            expected = np.asarray(plain(given)).tolist()
            assert np.asarray(f(given)).tolist() == expected
