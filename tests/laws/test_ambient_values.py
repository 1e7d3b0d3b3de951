"""Law 9, plain values: what a function reads is guarded, never baked in."""

from __future__ import annotations

import enum
import math
import types

import numpy as np
import pytest

SETTINGS = types.SimpleNamespace(flag=True, scale=2.0)
FLAG = False
FACTOR = 1


class Mode(enum.Enum):
    TRAIN = 1
    TEST = 2


class Layer:
    kind = "linear"

    def __init__(self, weight, **more):
        self.weight, self.training, self.rate = weight, True, 0.5
        self.parts, self.table = [], {}
        self.__dict__.update(more)

    @property
    def doubled(self):
        return self.rate * 2

    def __call__(self, x):
        y = x * self.weight
        return y * self.rate if self.training else y


def _global_reader(x):
    y = x * FACTOR
    return y + 1 if FLAG else y


def _helper(x):
    return _global_reader(x) * SETTINGS.scale


@pytest.fixture(autouse=True)
def _restore(monkeypatch):
    """Put every global that these tests change back."""
    for name in ("FLAG", "FACTOR", "_global_reader"):
        monkeypatch.setitem(globals(), name, globals()[name])
    monkeypatch.setattr(SETTINGS, "flag", SETTINGS.flag)
    monkeypatch.setattr(SETTINGS, "scale", SETTINGS.scale)
    monkeypatch.setattr(Layer, "kind", Layer.kind)


def test_a_learning_rate_that_a_schedule_changes(agree):
    """A closed-over number that changes is a miss; one that returns is a hit."""

    def program(w):
        rate = 0.1
        weight = w.values(4)

        def step(grad):
            np.subtract(weight, rate * grad, out=weight)
            return weight.sum()

        f = w.graph(step)
        for i in range(24):
            rate = (0.1, 0.05, 0.1, 0.0, -0.0, 0.05)[i // 4]
            yield f(w.values(4)), weight

    agree(program)


@pytest.mark.every_framework
def test_a_value_that_returns_finds_its_recording(rt):
    """Going back to an earlier value replays what was recorded for it."""
    layer = Layer(rt.array(np.ones(4)))
    f, x = rt.graph(lambda x: layer(x)), rt.array(np.arange(4.0))
    for _ in range(6):
        for layer.training in (True, False):
            f(x)
    stats = f.stats()
    assert (stats.warmups, stats.recordings) == (2, 2)
    assert stats.replays == 8


PLAIN = {
    "training": lambda s, _: setattr(s, "training", not s.training),
    "rate type": lambda s, _: setattr(s, "rate", 1 if s.rate != 1 else 1.0),
    "rate sign": lambda s, _: setattr(s, "rate", -0.0 if s.rate == 0.5 else 0.5),
    "list length": lambda s, _: s.parts.append(1),
    "list item": lambda s, _: s.parts.__setitem__(slice(None), [2]),
    "dict item": lambda s, _: s.table.update(k=s.table.get("k", 0) + 1),
    "dict key": lambda s, _: s.table.setdefault(len(s.table), 0),
    "deleted": lambda s, _: s.table.clear(),
    "new attribute": lambda s, _: setattr(s, "extra", getattr(s, "extra", 0) + 1),
    "string": lambda s, _: setattr(s, "name", "b" if s.name == "a" else "a"),
    "none": lambda s, _: setattr(s, "name", None),
    "enum": lambda s, _: setattr(
        s, "mode", Mode.TEST if s.mode is Mode.TRAIN else Mode.TRAIN
    ),
    "class attribute": lambda _, __: setattr(
        Layer, "kind", "conv" if Layer.kind == "linear" else "linear"
    ),
    "global flag": lambda _, __: globals().update(FLAG=not FLAG),
    "global number": lambda _, __: globals().update(FACTOR=FACTOR + 1),
    "namespace": lambda _, __: setattr(SETTINGS, "scale", SETTINGS.scale + 1),
    "tuple": lambda s, _: setattr(s, "sizes", (*s.sizes[-3:], len(s.sizes))),
    "numpy scalar": lambda s, _: setattr(s, "small", np.float32(s.small + 1)),
    "set": lambda s, _: s.names.add(f"n{len(s.names)}"),
    "dtype": lambda s, w: setattr(
        s,
        "dtype",
        w.framework.xp.float64
        if s.dtype is not w.framework.xp.float64
        else w.framework.xp.float32,
    ),
}


def _plain_reader(layer, cast):
    def f(x):
        y = layer(x) + len(layer.parts) + sum(layer.parts)
        y = y + sum(layer.table.values()) + len(layer.table)
        y = y + getattr(layer, "extra", -1) + len(layer.sizes) + sum(layer.sizes)
        y = y * layer.doubled + (layer.name == "a") - int(layer.name is None)
        y = y + (2 if layer.mode is Mode.TRAIN else 3) + (layer.kind == "conv")
        y = cast(y * layer.small + len(layer.names), layer.dtype)
        return _helper(y) + (1 if SETTINGS.flag else 0), layer.rate

    return f


@pytest.mark.every_framework
@pytest.mark.parametrize("change", PLAIN)
def test_a_changed_plain_value_is_a_miss(changing, change):
    """Flags, numbers, lengths, keys, wherever they are: never a stale result."""

    def make(w):
        more = {"name": "a", "mode": Mode.TRAIN, "sizes": (), "names": set()}
        more |= {"small": np.float32(2), "dtype": w.framework.xp.float32}
        layer = Layer(w.values(4), **more)
        return _plain_reader(layer, w.framework.cast), layer

    before = globals()["FLAG"], globals()["FACTOR"], SETTINGS.scale, Layer.kind

    def restored(w):
        globals()["FLAG"], globals()["FACTOR"] = before[:2]
        SETTINGS.scale, Layer.kind = before[2:]
        return make(w)

    world = changing(restored, (lambda *_: None, PLAIN[change]))
    assert world.count("replays") > 0


def test_a_method_guards_self(agree):
    """``self.training`` and ``self.weight`` of a graphed method are guarded."""

    def program(w):
        class Net:
            def __init__(self):
                self.weight, self.training = w.values(4), True

            @w.graph
            def forward(self, x):
                return x * self.weight if self.training else x

        net, x = Net(), w.values(4)
        for i in range(18):
            net.training = i // 3 % 2 == 0
            if i == 12:
                net.weight = w.values(4)
            yield net.forward(x)

    agree(program)


@pytest.mark.every_framework
def test_default_arguments_are_guarded(agree):
    """Defaults may be replaced, and mutable ones may change."""

    def program(w):
        def fn(x, n=1, *, scale=2.0, parts=[]):  # noqa: B006 - the point of the test
            return x * n * scale + len(parts)

        f, x = w.graph(fn), w.values(4)
        for i in range(24):
            if i == 4:
                fn.__defaults__ = (5,)
            if i == 8:
                fn.__kwdefaults__["scale"] = 3.0
            if i == 12:
                fn.__kwdefaults__["parts"].append(1)
            if i == 16:
                fn.__defaults__ = (w.values(4),)
            yield f(x), f(x, 2)

    agree(program)


def test_a_replaced_helper_is_noticed(agree):
    """A global function that is called may be replaced, as under test or reload."""

    def program(w):
        f, x = w.graph(lambda x: _global_reader(x)), w.values(4)
        original = _global_reader
        for i in range(12):
            if i % 3 == 0:
                globals()["_global_reader"] = (
                    original if i % 2 else lambda x, i=i: x - i
                )
            yield f(x)
        globals()["_global_reader"] = original

    agree(program)


def test_helpers_of_helpers_are_followed(agree):
    """What a called function reads, at any depth, is read by the graphed one."""

    def program(w):
        state = {"k": 1}

        def low(x):
            return x * state["k"]

        def middle(x):
            return [low(y) for y in (x, x + 1)]

        class Top:
            def __init__(self):
                self.call = middle

            def run(self, x):
                return self.call(x)

        top = Top()
        f, x = w.graph(lambda x: top.run(x)), w.values(4)
        for i in range(12):
            state["k"] = 1 + i // 4
            yield f(x)

    agree(program)


def test_a_replaced_method_or_class_is_noticed(agree):
    """Objects may get another method or another class under our feet."""

    def program(w):
        class One:
            def act(self, x):
                return x + 1

        class Two:
            def act(self, x):
                return x * 2

        holder = One()
        f, x = w.graph(lambda x: holder.act(x)), w.values(4)
        for i in range(20):
            if i == 4:
                One.act = lambda _, x: x - 1
            if i == 8:
                holder.__class__ = Two
            if i == 12:
                holder.act = lambda x: x * 7
            if i == 16:
                del holder.act
            yield f(x)

    agree(program)


@pytest.mark.parametrize("calls", [1, 3, 12])
def test_the_order_of_keys_is_a_value(agree, calls):
    """Whoever goes through a dict meets its keys in their order."""

    def program(w):
        terms = {"double": 2.0, "more": 3.0}
        acts = {"double": lambda x, k: x * k, "more": lambda x, k: x + k}

        def fold(x):
            for name, value in terms.items():
                x = acts[name](x, value)
            return x

        f, x = w.graph(fold), w.values(4)
        for _ in range(4):
            for _ in range(calls):
                yield f(x)
            terms["double"] = terms.pop("double")
            for _ in range(calls):
                yield f(x)
            terms["more"] = terms.pop("more")

    agree(program)


@pytest.mark.parametrize("calls", [1, 3, 12])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_class_of_one_of_several_is_noticed(agree, number, calls):
    """Objects of one class are looked into once by it; each may get another class."""

    def program(w):
        class One:
            def act(self, x):
                return x + 1

        class Two:
            def act(self, x):
                return x * 2

        layers = [One(), One(), One()]

        def run(x):
            for layer in layers:
                x = layer.act(x)
            return x

        f, x = w.graph(run), w.values(4)
        for cls in (One, Two, One, Two):
            layers[number].__class__ = cls
            for _ in range(calls):
                yield f(x)

    agree(program)


def test_module_attributes_are_guarded(agree, monkeypatch):
    """A plain value of a user's module that changes is a miss."""
    module = types.ModuleType("laws_settings")
    module.rate, module.inner = 1.5, types.SimpleNamespace(deep=1)

    def program(w):
        module.rate, module.inner.deep = 1.5, 1
        f = w.graph(lambda x: x * module.rate + module.inner.deep + math.pi)
        x = w.values(4)
        for i in range(12):
            module.rate = 1.5 + i // 4
            module.inner.deep = i // 6
            yield f(x)

    agree(program)
    del monkeypatch


@pytest.mark.minimal
@pytest.mark.every_framework
def test_a_miss_says_what_changed(rt):
    """`explain()` names the value that differs, not just that something did."""
    layer = Layer(rt.array(np.ones(4)))
    f, x = rt.graph(lambda x: layer(x)), rt.array(np.ones(4))
    for _ in range(3):
        f(x)
    layer.training = False
    f(x)
    assert "training" in f.explain()
    layer.training = True
    before, layer.weight = layer.weight, rt.array(np.zeros(4))
    f(x)
    assert "weight" in f.explain()
    del before


def test_numbers_that_python_does_not_write_out(agree):
    """An enormous number is a value like any other, also in messages and in a store."""

    def program(w):
        f = w.graph(lambda x, n: x * (n % 7) + huge % 5)
        x = w.values(4)
        for i in range(8):
            yield f(x, huge + i // 4)

    huge = 10**5000
    agree(program)
