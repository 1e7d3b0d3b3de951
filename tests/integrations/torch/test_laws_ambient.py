"""Tensors and plain values that a function reads besides its arguments are followed."""

from __future__ import annotations

import enum
import functools
import types
from dataclasses import dataclass, field

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

WEIGHT = None
FACTOR = 1


class Mode(enum.Enum):
    TRAIN = 1
    TEST = 2


class Layer:
    kind = "linear"

    def __init__(self, weight, **more):
        self.weight, self.rate, self.training = weight, 0.5, True
        self.parts, self.table = [], {}
        self.__dict__.update(more)

    def __call__(self, x):
        y = x * self.weight
        return y * self.rate if self.training else y


@dataclass
class Deep:
    table: dict = field(default_factory=dict)


@pytest.fixture(autouse=True)
def _restore(monkeypatch):
    """Put the globals that these tests change back."""
    for name in ("WEIGHT", "FACTOR"):
        monkeypatch.setitem(globals(), name, globals()[name])
    monkeypatch.setattr(Layer, "kind", Layer.kind)


@pytest.fixture
def changing(alike):
    """Return what runs a function before and after every change, several times.

    ``make`` gets a world, and returns the function and the state that is changed.
    """

    def changing(make, changes, rounds=2, calls=4):
        def program(w):
            fn, state = make(w)
            f, x = w.graph(fn), w.values(4)
            for _ in range(rounds):
                for change in changes:
                    change(state, w)
                    for _ in range(calls):
                        yield f(x), x

        return alike(program)

    return changing


# Tensors.


def test_a_replaced_closed_over_tensor_is_noticed(alike):
    """A name bound to another tensor is another tensor, at once."""

    def program(w):
        weight = w.values(4)
        f, x = w.graph(lambda x: x * weight), w.values(4)
        for i in range(18):
            if i % 3 == 0:
                weight = w.values(4)
            yield f(x), weight

    assert alike(program).count("replays") > 0


def test_a_tensor_changed_in_place_is_seen(alike):
    """Contents are read by every replay, without a new recording."""

    def program(w):
        weight, holder = w.values(4), {"bias": [w.values(4)]}
        f, x = w.graph(lambda x: x * weight + holder["bias"][0]), w.values(4)
        for i in range(8):
            weight += i
            holder["bias"][0][i % 4] = -i
            yield f(x)

    world = alike(program)
    assert world.count("recordings") == 1
    assert world.count("copied_bytes") == 0


def test_a_replaced_global_tensor_is_noticed(alike):
    """The same for globals."""

    def program(w):
        f, x = w.graph(lambda x: (x * WEIGHT).sum()), w.values(4)
        for i in range(18):
            if i % 3 == 0:
                globals()["WEIGHT"] = w.values(4)
            WEIGHT[1] = i
            yield f(x)
        globals()["WEIGHT"] = None

    alike(program)


def _make_layer(w):
    layer = Layer(w.values(4))
    return lambda x: layer(x), layer


ATTRIBUTE = (
    lambda layer, _: layer.weight.mul_(2),
    lambda layer, w: setattr(layer, "weight", w.values(4)),
    lambda layer, w: setattr(layer, "weight", w.values(2, 4)),
    lambda layer, w: setattr(layer, "weight", w.values(4, dtype=torch.float64)),
    lambda layer, w: setattr(layer, "weight", w.values(8)[::2]),
    lambda layer, _: setattr(layer, "weight", 3),
)


def test_attribute_tensors_are_guarded(changing):
    """An object's tensor may be written, replaced, reshaped or become a number."""
    # The second round begins with a number.
    changing(_make_layer, (*ATTRIBUTE, ATTRIBUTE[1]))


def test_tensors_given_other_memory_are_noticed(changing):
    """So are those whose ``data`` is another's, of modules and of the user's own."""

    def data(layer, w):
        layer.weight.data = w.values(4)

    changing(_make_layer, (data, ATTRIBUTE[0], data))


def test_tensors_in_a_growing_list_are_found(changing):
    """A list of tensors that grows, shrinks and changes its order is followed."""

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


def test_tensors_in_dicts_objects_and_partials_are_found(changing):
    """Wherever code can reach a tensor by names, its replacement is noticed."""

    def make(w):
        deep = Deep({"a": (w.values(4), [w.values(4)])})
        state = types.SimpleNamespace(deep=deep, bound=w.values(4))
        state.call = functools.partial(lambda part, x: x * part, state.bound)

        def f(x):
            first, (second,) = state.deep.table["a"]
            return first * x + second, state.call(x)

        return f, state

    def replace_partial(state, w):
        state.call = functools.partial(state.call.func, w.values(4))

    def replace_item(state, w):
        state.deep.table["a"] = (w.values(4), [w.values(4)])

    def replace_inner(state, w):
        state.deep.table["a"][1][0] = w.values(4)

    def write_partial(state, _):
        state.bound[0] = 5

    changing(make, (replace_item, replace_inner, replace_partial, write_partial))


def test_default_arguments_are_followed(alike):
    """Defaults may be replaced by other values and tensors, and may change."""

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

    alike(program)


def test_a_tensor_that_is_replaced_before_every_call(alike):
    """``self.h`` that is another tensor in each call is right in each."""

    def program(w):
        layer, kept = Layer(None), []
        f, x = w.graph(lambda x: layer(x)), w.values(4)
        for i in range(16):
            layer.weight = w.values(4)
            kept.append(layer.weight if i % 2 else None)
            yield f(x)

    assert alike(program).count("passed_through") == 0


def test_an_ambient_output_of_a_recording(alike):
    """An output of one function, kept in an attribute that another one reads."""

    def program(w):
        layer = Layer(None)
        make, f = w.graph(lambda x: x * 2), w.graph(lambda x: layer(x))
        x = w.values(4)
        for _ in range(12):
            layer.weight = make(x)
            yield f(x), layer.weight
            x += 1

    world = alike(program)
    assert world.count("recordings") <= 10
    assert world.count("replays") > 0


def test_ambient_tensors_that_begin_to_overlap(changing):
    """Whether two ambient tensors share memory is part of what is guarded."""

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

    def shift(state, w):
        both = w.values(6)
        state.a, state.b = both[:4], both[2:]

    def copied(state, _):
        state.b = state.b.clone()

    changing(make, (part, join, part, shift, copied))


def test_an_ambient_tensor_that_becomes_the_argument(alike):
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

    alike(program)


def test_aliasing_may_differ_between_warm_up_and_recording(alike):
    """An ambient tensor that was the argument in the warm-up, and is not now."""

    def program(w):
        layer, a, others = Layer(w.values(3)), w.values(3), [w.values(3), w.values(3)]

        def fn(x):
            layer.weight.copy_(x)

        f = w.graph(fn)
        layer.weight = a
        f(a)
        for i in range(12):
            layer.weight = a if i % 4 == 3 else others[i % 2]
            f(a)
            yield layer.weight, a

    assert alike(program).count("replays") > 0


# Plain values.

PLAIN = {
    "flag": lambda s, _: setattr(s, "training", not s.training),
    "type": lambda s, _: setattr(s, "rate", 1 if s.rate != 1 else 1.0),
    "sign": lambda s, _: setattr(s, "rate", -0.0 if s.rate == 0.5 else 0.5),
    "length": lambda s, _: s.parts.append(1),
    "item": lambda s, _: s.table.update(k=s.table.get("k", 0) + 1),
    "new attribute": lambda s, _: setattr(s, "extra", getattr(s, "extra", 0) + 1),
    "string": lambda s, _: setattr(s, "name", "b" if s.name == "a" else "a"),
    "enum": lambda s, _: setattr(
        s, "mode", Mode.TEST if s.mode is Mode.TRAIN else Mode.TRAIN
    ),
    "class": lambda _, __: setattr(
        Layer, "kind", "conv" if Layer.kind == "linear" else "linear"
    ),
    "global": lambda _, __: globals().update(FACTOR=FACTOR + 1),
    "dtype": lambda s, _: setattr(
        s, "dtype", torch.float64 if s.dtype is torch.float32 else torch.float32
    ),
}


def _reader(layer):
    def f(x):
        y = layer(x).to(layer.dtype) + len(layer.parts) + sum(layer.table.values())
        y = y * FACTOR + getattr(layer, "extra", -1) + (layer.name == "a")
        return y + (2 if layer.mode is Mode.TRAIN else 3), layer.kind, layer.rate

    return f


@pytest.mark.parametrize("change", PLAIN)
def test_a_changed_plain_value_is_a_miss(changing, change):
    """Flags, numbers, lengths, keys, wherever they are: never a stale result."""

    def make(w):
        Layer.kind = "linear"
        globals()["FACTOR"] = 1
        layer = Layer(w.values(4), name="a", mode=Mode.TRAIN, dtype=torch.float32)
        return _reader(layer), layer

    assert changing(make, (lambda *_: None, PLAIN[change])).count("replays") > 0
