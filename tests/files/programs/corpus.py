# ruff: noqa: ARG001 - makers are alike, also where one needs no runtime
"""Functions to be saved: ``MAKERS[name](rt)`` returns one, and what else to look at."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from types import SimpleNamespace

import numpy as np
from nests import Frozen, Outer, Pair, Point

MAKERS = {}


def _maker(make):
    MAKERS[make.__name__] = make
    return make


def _nothing():
    return {}


@_maker
def views(rt):
    table = rt.array(np.arange(12.0).reshape(3, 4))

    def f(x):
        y = x * 2.0
        return y, y[1:], y.T[::2], x[0], x, x.reshape(-1)[::-1], table[1], table, y

    return f, _nothing


@_maker
def in_place(rt):
    def f(w, x):
        w -= x * 0.5
        w[0] *= 2.0
        return w.sum(), w, w[1:]

    return f, _nothing


@_maker
def copied_back(rt):
    def f(x, y):
        x += y
        return x.max()

    return f, _nothing


@_maker
def rebound(rt):
    table = {"k": rt.array(np.ones(5)), 3: None}
    o = SimpleNamespace(h=rt.array(np.zeros(5)), table=table)

    def f(x):
        o.h = o.h * 0.5 + x
        o.table["k"] = o.h[::-1] + o.table["k"]
        return o.h + 1.0, o.h

    return f, lambda: {"o.h": o.h, "o.table['k']": o.table["k"]}


@_maker
def lazily(rt):
    o = SimpleNamespace(buffer=None)

    def f(x):
        if o.buffer is None:
            o.buffer = np.zeros(5, like=x)
        o.buffer += x
        return o.buffer * 1.0

    return f, lambda: {"o.buffer": o.buffer}


@_maker
def generator(rt):
    rng = rt.generator(3)

    def f(x):
        return x + rng.random(5), rng.integers(0, 100, 4), rng.standard_normal()

    return f, _nothing


@_maker
def passed_generator(rt):
    def f(rng, x):
        return x + rng.random(5), rng

    return f, _nothing


@_maker
def nests(rt):
    def f(x):
        y = x + 1.0
        kept = defaultdict(list, a=y)
        return {
            "pair": Pair(y, [x, y]),
            "frozen": Frozen((y, 2)),
            "inner": Outer.Inner(None),
            "point": Point(y, -y),
            "ordered": OrderedDict([("b", y), ("a", x)]),
            "default": kept,
            "deque": deque([y, 1], 5),
            "keys": {1: y, 1.5: y, (2, "x"): y, None: y, False: x, b"b": 0},
            "empty": [(), {}, [], deque()],
        }

    return f, _nothing


@_maker
def constants(rt):
    def f(x):
        return (
            x * 1.0,
            [1, True, 1.0, 0.0, -0.0, float("nan"), float("-inf"), 1e-320],
            [None, ..., "é\ud800", b"\0\xff", 1j, -0.0 + 0j, 10**60, -(10**60)],
            [range(3), slice(1, None, 2)],
        )

    return f, _nothing


@_maker
def signatures(rt):
    offset = rt.array(np.float64(0.5))

    def f(x, scale):
        return x * scale + offset, scale

    return f, _nothing


@_maker
def odd(rt):
    def f(scalar, empty, strided, broadcast):
        return (
            scalar + 1.0,
            empty * 2.0,
            empty.sum(0),
            strided.sum(0),
            strided * 2.0,
            broadcast + scalar,
            strided[:0],
            np.zeros((), like=scalar),
        )

    return f, _nothing


@_maker
def nested_arguments(rt):
    def f(tree, *rest, flag=False, z=None, unused=3):
        x, (y, factor) = tree["w"]
        return {"w": x * factor + y, "z": z, "tree": tree, "flag": flag, "rest": rest}

    return f, _nothing


@_maker
def overlapping(rt):
    def f(a, b, c):
        a[2:] += 1.0
        b *= 2.0
        return a.sum(), b[0], c + 0.0, a

    return f, _nothing


@_maker
def dtypes(rt):
    def f(*arrays):
        return [array + array for array in arrays], [a.astype("f4") for a in arrays[:5]]

    return f, _nothing


@_maker
def large(rt):
    weights = rt.array(np.arange(400_000.0))

    def f(x):
        y = x + weights
        z = y * 2.0
        weights[::2] += 1.0
        return z.sum(), y[5:], z

    return f, lambda: {"weights": weights}


@_maker
def layers(rt):
    long = "a name that is longer than fifty characters, to be shortened somewhere"
    model = {
        "layers": [
            {"w": rt.array(np.eye(6) + i), "b": rt.array(np.full(6, 0.25 * i))}
            for i in range(3)
        ],
        long + "1": rt.array(np.ones(6)),
        long + "2": rt.array(np.full(6, 2.0)),
    }
    momenta = [rt.array(np.zeros((6, 6))) for _ in range(3)]

    def f(x):
        for layer, momentum in zip(model["layers"], momenta, strict=True):
            np.multiply(momentum, 0.5, out=momentum)
            np.add(momentum, x.T @ x, out=momentum)
            layer["w"] -= momentum * 0.001
            x = np.maximum(x @ layer["w"] + layer["b"], 0.0)
        return x * model[long + "1"] - model[long + "2"]

    return f, lambda: {f"momenta[{i}]": each for i, each in enumerate(momenta)}


@_maker
def functions(rt):
    picked = rt.array(np.array([2, 0, 1]))

    def f(x):
        y = np.where(x > 0.0, x, -x)
        return (
            np.take(y, picked, axis=1),
            y[picked, picked],
            np.concatenate((y[:1], y[-1:])),
            np.sort(y, axis=0),
            np.argmax(y, axis=1),
            np.cumsum(y, 0),
            np.pad(y, 1),
            np.einsum("ij,jk->ik", y, x),
            np.fft.fft(y[0]),
            np.linalg.norm(y),
            np.stack([x, y]).mean(),
            np.clip(x, -1.0, None),
            np.repeat(y[0], 2),
            np.tile(y[0], 2),
            np.arange(4, like=x),
            x.std(0),
            np.isfinite(x).all(),
        )

    return f, _nothing


class Model:
    """Has a method that is graphed."""

    def __init__(self, rt):
        self.w, self.rate = rt.array(np.ones(3)), 0.5

    def step(self, x):
        self.w += self.rate * x
        return self.w * 2.0


@_maker
def method(rt):
    model = Model(rt)
    return model.step, lambda: {"self.w": model.w}


@_maker
def nothing(rt):
    count = rt.array(np.zeros(2))

    def f():
        count[...] += 1.0

    return f, lambda: {"count": count}


@_maker
def only_aliases(rt):
    def f(x):
        return x, [x], x

    return f, _nothing


@_maker
def donated(rt):
    def f(state, x):
        state += x
        return state, x[::2]

    return f, _nothing


@_maker
def many_outputs(rt):
    def f(x):
        return [x + float(i) for i in range(60)]

    return f, _nothing


@_maker
def bound_only(rt):
    o = SimpleNamespace(out=None)

    def f(x):
        o.out = x * 2.0
        return x[0]

    return f, lambda: {"o.out": o.out}


@_maker
def kept_twice(rt):
    def f(w, x):
        w += x
        return w * 2.0

    return f, _nothing


@_maker
def long_keys(rt):
    long = "a name so long that what is shown of it cannot tell it from others: "
    table = {f"{long}{i}": rt.array(np.full(3, float(i))) for i in range(4)}

    def f(x):
        table[long + "1"] += x
        return x + table[long + "2"]

    return f, lambda: {"read": [table[f"{long}{i}"] for i in (1, 2)]}


@_maker
def several_orders(rt):
    a, b, c = (rt.array(np.full(3, float(i))) for i in range(3))

    def f(x, which):
        if which == "ac":
            return x + a * c
        if which == "bc":
            return x - b * c
        return x * (a + b + c)

    return f, _nothing
