"""Law 9, again and again: what a function reads is noticed however it comes to differ.

The calls are many and of several shapes, so that most recordings are made after a
survey that found the same: writes between and inside calls are noticed all the same.
"""

from __future__ import annotations

import pytest


def _rotating(agree, make, changes):
    """Call with ever new shapes before and after every change, then with all again."""

    def program(w):
        fn, state = make(w)
        f = w.graph(fn)
        xs = [w.values(rows, 4) for rows in range(1, 4)]
        for change in (lambda _, __: None, *changes, *changes):
            change(state, w)
            for x in xs:
                for _ in range(3):
                    yield f(x), x

    agree(program)


@pytest.mark.parametrize("longer", [True, False])
def test_a_tuple_of_another_length_is_noticed(agree, longer):
    """One that begins alike is another one, be it longer or shorter."""

    def make(w):
        state = {"parts": (w.values(4), w.values(4))}

        def fn(x):
            for part in state["parts"]:
                x = x + part
            return x

        return fn, state

    def change(state, w):
        if longer:
            state["parts"] = (*state["parts"], w.values(4))
        else:
            state["parts"] = (*state["parts"], w.values(4))[:1]

    _rotating(agree, make, [change])


def test_writes_between_calls_of_many_shapes_are_noticed(agree):
    """Arrays rebound, values replaced by the same and by others, lists that grow."""

    class Layer:
        def __init__(self, weight):
            self.weight, self.rate, self.parts = weight, 0.5, []

    def make(w):
        layers = [Layer(w.values(4)) for _ in range(3)]

        def fn(x):
            for layer in layers:
                x = x * layer.weight + layer.rate * len(layer.parts)
            return x

        return fn, layers

    def same(layers, _):
        for layer in layers:
            layer.rate, layer.parts = float(str(layer.rate)), [*layer.parts]

    changes = [
        same,
        lambda layers, w: setattr(layers[0], "weight", w.values(4)),
        lambda layers, _: layers[1].parts.append(1),
        lambda layers, _: setattr(layers[2], "rate", layers[2].rate + 1.0),
        lambda layers, _: setattr(layers[1], "parts", layers[0].parts),
        lambda layers, _: layers.append(layers.pop(0)),
        lambda layers, _: setattr(layers[0], "__class__", type("L", (Layer,), {})),
    ]
    _rotating(agree, make, changes)


def test_slots_bound_inside_calls_of_many_shapes_are_bound_again(agree):
    """What a recording binds is noticed, though all surveys before found the same."""

    class Cache:
        last = None

    def make(_):
        cache = Cache()

        def fn(x):
            y = x * 2 if cache.last is None else x + cache.last
            cache.last = y[0] * 0.5
            return y

        return fn, cache

    _rotating(agree, make, [lambda cache, w: setattr(cache, "last", w.values(4))])
