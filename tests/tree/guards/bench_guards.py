"""Prints what guards cost: run by path, with ``PYTHONPATH=src``."""

from __future__ import annotations

import timeit
from functools import partial
from types import SimpleNamespace

from sapwood.tree.guards import survey
from sapwood.tree.nests.containers import constant_key, flatten


class Array:
    """An array of nothing."""

    shape = (1,)


class Arrays:
    def surroundings(self):
        return ()

    def is_array(self, value):
        return type(value) is Array

    def look(self, array):
        return SimpleNamespace(
            layout=array.shape, storage=SimpleNamespace(stale=None), address=id(array)
        )


class Layer:
    def __init__(self):
        self.w, self.b, self.training, self.rate = Array(), Array(), True, 0.1

    def __call__(self, x):
        return self.w, self.b, self.training, self.rate, x


class Model:
    def __init__(self, layers):
        self.layers = [Layer() for _ in range(layers)]
        self.a0 = self.a1 = self.a2 = self.a3 = self.a4 = 0.5
        self.a5 = self.a6 = self.a7 = self.a8 = self.a9 = 0.5

    def plain(self):
        m = self
        return m.a0, m.a1, m.a2, m.a3, m.a4, m.a5, m.a6, m.a7, m.a8, m.a9

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def _microseconds(call, number=2000) -> float:
    return min(timeit.repeat(call, number=number, repeat=5)) / number * 1e6


def main() -> None:
    """Print a table in microseconds."""
    x, model, deep, arrays = Array(), Model(0), Model(8), Arrays()
    rows = {}
    for name, fn, arguments in [
        ("nothing", lambda: 1, {}),
        ("10 attributes", model.plain, {}),
        ("8 layers: 16 arrays, 16 values", deep.forward, {"x": x}),
    ]:
        read = partial(survey, fn, arguments, arrays)
        rows[f"match {name}"] = _microseconds(read().guards(lambda _: True).match)
        rows[f"survey {name}"] = _microseconds(read, 50)
    call = ((x, x, 1), {})
    rows["flatten"] = _microseconds(lambda: flatten(call, arrays.is_array))
    rows["constant_key of a float"] = _microseconds(lambda: constant_key(0.1))
    for name, cost in rows.items():
        print(f"{name:40} {cost:8.2f} us")  # noqa: T201 - that is its purpose


if __name__ == "__main__":
    main()
