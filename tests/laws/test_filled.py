"""Law 10, of what a first call makes ready for later ones: caches, lazy attributes.

Such a call is a warm-up. What is filled again and again is told of, as other writes.
"""

from __future__ import annotations

import functools
import re
import types
import warnings

import numpy as np
import pytest

import sapwood as sw
from tests.support.frameworks import on_host

CALLS = 12


class Part:
    """What an object makes of itself when it is first asked."""

    def __init__(self, factor):
        self.factor = factor


class Lazy:
    """Makes what it needs in its first call, each kind of thing in its own place."""

    shared = None

    def __init__(self):
        self.part, self.table, self.slots, self.lines = None, {}, [None], []

    def by_none(self, x):
        if self.part is None:
            self.part = Part(3.0)
        return x * self.part.factor

    def by_name(self, x):
        if not hasattr(self, "made"):
            self.made = Part(2.0)
            self.kind, self.ready = "made", True
        return x * self.made.factor

    def by_key(self, x):
        if x.shape not in self.table:
            self.table[x.shape] = Part(float(len(self.table) + 2))
        return x * self.table[x.shape].factor

    def by_place(self, x):
        if self.slots[0] is None:
            self.slots[0] = Part(5.0)
        return x * self.slots[0].factor

    def by_class(self, x):
        if type(self).shared is None:
            type(self).shared = Part(7.0)
        return x * type(self).shared.factor

    def by_array(self, x):
        if "weight" not in self.table:
            self.table["weight"] = x * 0.0 + 4.0
        return x * self.table["weight"]

    def by_number(self, x):
        if not hasattr(self, "steps"):
            self.steps = 4
        return x * self.steps


WAYS = [name for name in vars(Lazy) if name.startswith("by_")]


def lazy():
    """Return an object of a class of its own."""
    return type("Own", (Lazy,), {})()


@pytest.mark.every_framework
@pytest.mark.parametrize("way", WAYS)
def test_what_is_made_once_is_a_warm_ups(rt, way):
    """Nothing is skipped, kept results are as eager ones, later calls are replays."""
    ours, plain, x = lazy(), lazy(), np.arange(3.0)
    f = rt.graph(lambda x: getattr(ours, way)(x))
    kept = [f(rt.array(x + n)) for n in range(CALLS)]
    expected = [getattr(plain, way)(x + n).tolist() for n in range(CALLS)]
    assert [on_host(each).tolist() for each in kept] == expected
    stats = f.stats()
    assert stats.skipped == ()
    assert stats.replays >= CALLS - 5


@pytest.mark.every_framework
def test_each_shape_makes_its_own(rt):
    """A table by shape is filled for each of them, and all are recorded."""
    ours, plain = lazy(), lazy()
    f = rt.graph(lambda x: ours.by_key(x))
    for number in range(5 * CALLS):
        x = np.arange(1.0 + number % 5)
        assert on_host(f(rt.array(x))).tolist() == plain.by_key(x).tolist()
    assert f.stats().replays >= 3 * CALLS
    assert f.stats().skipped == ()


@pytest.mark.every_framework
@pytest.mark.parametrize("way", ["by_name", "by_none", "by_key", "by_place"])
def test_the_full_graph_is_asked_for(rt, way):
    """A call that makes more than a result raises, by name; the next one finds it."""
    ours, x = lazy(), rt.array(np.arange(3.0))
    f = rt.graph(lambda x: getattr(ours, way)(x), fullgraph=True)
    with pytest.raises(sw.CaptureError, match=r"made|part|table|slots|kind|ready"):
        f(x)
    found = [on_host(f(x)).tolist() for _ in range(CALLS)]
    assert found == [getattr(lazy(), way)(np.arange(3.0)).tolist()] * CALLS
    assert f.stats().replays >= CALLS - 4


@pytest.mark.every_framework
@pytest.mark.parametrize(
    ("write", "told"),
    [
        (lambda o: o.table.update({len(o.table): Part(1)}), "table"),
        (lambda o: o.lines.append(Part(1)), "lines"),
        (lambda o: setattr(o, "part", None if o.part else Part(1)), "part"),
    ],
)
def test_what_is_filled_again_and_again_is_told_of(rt, write, told):
    """It is said once, by its name; then all calls do what the plain function does."""
    ours, plain, x = lazy(), lazy(), rt.array(np.arange(3.0))

    def fn(x):
        write(ours)
        return x * 2

    f = rt.graph(fn)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(3 * CALLS):
            assert on_host(f(x)).tolist() == [0, 2, 4]
            write(plain)
            assert vars(ours).keys() == vars(plain).keys()
            assert len(ours.table) == len(plain.table)
            assert len(ours.lines) == len(plain.lines)
            assert (ours.part is None) == (plain.part is None)
    assert found
    assert all(re.search(told, str(each.message)) for each in found)
    assert f.stats().replays == 0
    assert f.stats().warmups <= 9


@pytest.mark.every_framework
@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_what_is_emptied_between_calls_is_made_anew(rt):
    """A cache that its owner empties is filled by every call that finds it so."""
    ours, plain, x = lazy(), lazy(), np.arange(3.0)
    f = rt.graph(lambda x: ours.by_key(x))
    for number in range(4 * CALLS):
        if number % 4 == 3:
            ours.table.clear()
            plain.table.clear()
        assert on_host(f(rt.array(x))).tolist() == plain.by_key(x).tolist()
        assert len(ours.table) == 1
    assert f.stats().replays >= CALLS - 2


@pytest.mark.every_framework
def test_what_is_filled_beside_other_writes(rt):
    """What else a first call writes is written as often as the plain function does."""
    ours, log, x = types.SimpleNamespace(part=None, at=None), [], np.arange(3.0)

    def fn(x):
        if ours.part is None:
            ours.part = Part(2.0)
            log.append(object())
        return x * ours.part.factor

    f = rt.graph(fn)
    for _ in range(CALLS):
        assert on_host(f(rt.array(x))).tolist() == [0, 2, 4]
        assert len(log) == 1
    assert f.stats().replays >= CALLS - 5


def test_eager_regions_and_what_is_filled(rt):
    """A region runs once in each call, also in one that makes things ready."""
    ours, ran, x = lazy(), [], np.arange(3.0)
    aside = sw.eager(lambda y: ran.append(1) or y + 0.0)
    f = rt.graph(lambda x: aside(ours.by_none(x)) + 1)
    for number in range(CALLS):
        assert on_host(f(rt.array(x))).tolist() == [1, 4, 7]
        assert len(ran) == number + 1
    assert f.stats().replays >= CALLS - 5


class Model:
    """Keeps what it has computed of a rate, until somebody has it computed anew."""

    def __init__(self):
        self.rate = 1.0

    @functools.cached_property
    def scale(self):
        return self.rate * 2

    @functools.cached_property
    def scales(self):
        return self.rate, (self.rate + 1, "scales")


@pytest.mark.parametrize("verify", [0, 1])
@pytest.mark.parametrize("name", ["scale", "scales"])
def test_a_cached_property_is_kept_by_replays(agree, verify, name):
    """What it is computed of may change later: the plain function has the old one."""

    def program(w):
        model = Model()

        def fn(x):
            found = getattr(model, name)
            return x * (found if name == "scale" else found[1][0])

        f = w.graph(fn, verify=verify)
        for i in range(24):
            if i % 2 == 0 and i < 20:
                vars(model).pop(name, None)
            if i == 20:
                model.rate = 7.0
            yield f(w.values(3)), vars(model).get(name)

    agree(program)
