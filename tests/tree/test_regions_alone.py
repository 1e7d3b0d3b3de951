"""Regions that write arrays, and see nothing else of what a function has.

Optimizers' steps are such. What the function writes in Python is nobody's before it
returns; a call that goes another way does not run such a region twice.
"""

from __future__ import annotations

import gc
import random
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

import sapwood as sw
from sapwood import _fast
from tests.support.rig import CUDA, IN_C, VARIANTS, Rig, fast_replays_at_once

pytestmark = pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")

ONES = (*VARIANTS, IN_C, pytest.param(CUDA, marks=pytest.mark.gpu))


@pytest.fixture(params=ONES)
def rig(request):
    if request.param == IN_C and _fast.native() is None:
        pytest.skip("nothing in C here")
    made = Rig(request.param)
    if request.param == CUDA:
        fast_replays_at_once(made.runtime)
    yield made
    gc.collect()
    made.finish()


class Refused(Exception):
    """What a region raises."""


def descends(model, inside):
    """Return a region that takes some of a gradient from weights, and its calls.

    Where it raises, the gradient is bound: a replay has not done that by then.
    """
    calls = []

    @sw.eager
    def descend(weights, gradient):
        calls.append(0)
        try:
            inside()
        except Refused:
            model.gradient = gradient
            raise
        weights -= gradient * (0.5 / len(calls))

    descend.sees = False
    return descend, calls


class Model:
    """What a function reads and writes: weights, and books that it keeps."""

    def __init__(self, make, inside=bool):
        self.weights = make(np.ones(4))
        self.mean = make(np.zeros(4))
        self.gradient, self.steps, self.losses = None, 0, []
        self.last = {"loss": None}
        self.descend, self.calls = descends(self, inside)


def _plain(model, x):
    model.gradient = model.weights * x
    loss = (model.gradient * x).sum()
    model.descend(model.weights, model.gradient)
    return loss, model.weights * 2


def _booked(model, x):
    """Books are kept in front of it, and behind it."""
    model.steps += 1
    model.gradient = model.weights * x
    model.mean[...] = model.mean * 0.5 + model.weights
    model.losses.append(model.gradient.sum())
    model.descend(model.weights, model.gradient)
    model.last = {"loss": model.weights.sum()}
    model.steps += 1
    return model.weights * 2


def _reading(model, x):
    """Values decide in front of it, and behind it."""
    model.gradient = model.weights * x
    if model.gradient.sum() > 4:
        model.gradient = model.gradient * 0.5
    model.mean[...] = model.mean + model.gradient
    model.descend(model.weights, model.gradient)
    if model.weights.sum() > 3:
        model.mean[...] = model.mean * 0.5
    return model.weights + model.mean


def _leading(model, x):
    """Values decide in front of it alone."""
    model.gradient = model.weights * x
    if model.gradient.sum() > 4:
        model.gradient = model.gradient * 0.5
    model.mean[...] = model.mean + model.gradient
    model.descend(model.weights, model.gradient)
    return model.weights + model.mean


FUNCTIONS = {
    "plain": _plain,
    "booked": _booked,
    "reading": _reading,
    "leading": _leading,
}


def _bytes(value):
    if isinstance(value, (tuple, list)):
        return [_bytes(each) for each in value]
    if isinstance(value, dict):
        return {key: _bytes(each) for key, each in value.items()}
    if value is None or isinstance(value, int | float):
        return value
    return np.array(value.get() if hasattr(value, "get") else value).tobytes()


def _state(model):
    books = model.steps, model.losses, model.last, len(model.calls)
    return _bytes([model.weights, model.mean, model.gradient, *books])


@pytest.mark.parametrize("fn", FUNCTIONS.values(), ids=FUNCTIONS)
def test_calls_end_as_eager_ones(rig, fn):
    """Whatever is kept, and whoever else takes memory inside the region."""
    rt, draw = rig.runtime, random.Random(5)
    other, kept = rt.graph(lambda x: (x * 3, x + 1)), []
    y = rt.array(np.ones(4))

    def inside():
        match draw.choice(range(8)):
            case 0:
                kept.append(other(y))
            case 1:
                kept.clear()
                rt.array(np.ones(1 << 20))
            case 2:
                gc.collect()

    mine, theirs = Model(rt.array, inside), Model(rt.array)
    f, held = rt.graph(lambda x: fn(mine, x)), []
    for turn in range(80):
        level = draw.choice([-1.0, 0.5, 2.0]) if turn > 40 else 1.0
        x = np.full(4, level) * (1 + np.arange(4.0)) / 4
        held.append((f(rt.array(x)), fn(theirs, rt.array(x))))
        for result, expected in held:
            assert _bytes(result) == _bytes(expected)
        assert _state(mine) == _state(theirs)
        del held[: len(held) - draw.choice([0, 1, 3])]
    assert f.stats().replays > 20


@pytest.mark.parametrize("fn", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("caught", [False, True])
def test_what_it_raises_ends_the_call(rig, fn, caught):
    """All is as where the plain function was left, or went on."""
    rt, raises = rig.runtime, [False]

    def inside():
        if raises[0]:
            raise Refused

    def run(model, x):
        if not caught:
            return fn(model, x)
        try:
            return fn(model, x)
        except Refused:
            model.mean[...] = model.mean + 1
            return model.mean * 2

    mine, theirs = Model(rt.array, inside), Model(rt.array, inside)
    f = rt.graph(lambda x: run(mine, x))
    for turn in range(40):
        raises[0] = turn % 10 == 9
        x = np.full(4, 1 + turn / 40)
        found, expected = None, None
        with suppress(Refused):
            found = f(rt.array(x))
        with suppress(Refused):
            expected = run(theirs, rt.array(x))
        assert _bytes(found) == _bytes(expected)
        assert _state(mine) == _state(theirs)


def test_a_step_costs_no_copy(rig):
    """Nothing is saved for calls that could go another way: none can."""
    rt = rig.runtime
    model = Model(rt.array)
    f = rt.graph(lambda x: _plain(model, x))
    x = rt.array(np.ones(4))
    for _ in range(20):
        f(x)
    rig.recorded.reset()
    before = f.stats()
    for _ in range(20):
        f(x)
    after, counts = f.stats(), rig.recorded.counts()
    assert after.replays - before.replays == 20
    # The region itself launches, and copies, as it does without a graph.
    rig.recorded.reset()
    for _ in range(20):
        model.descend(model.weights, model.gradient)
    assert counts.get("copy") == rig.recorded.counts().get("copy")


def test_c_plays_around_it(rig):
    """What is bound lives until the next call: recordings take turns."""
    rt = rig.runtime
    model = Model(rt.array)
    f, x = rt.graph(lambda x: _plain(model, x)), rt.array(np.ones(4))
    for _ in range(40):
        f(x)
    launches = rig.lending.launches if rig.lending else 0
    before = f.stats().replays
    for _ in range(200):
        f(x)
    assert f.stats().replays - before == 200
    if rig.lending is not None:
        assert rig.lending.launches - launches >= 2 * 190


def test_what_does_not_fit_behind_it(rig):
    """Somebody takes the pages of what comes: the call ends all the same."""
    rt = rig.runtime
    takers = [rt.graph(lambda x, i=i: (x * i, x + i)) for i in range(3)]
    y, kept, turn = rt.array(np.ones(4)), [], [0]

    def inside():
        kept.append([each(y) for each in takers])
        if turn[0] % 3 == 0:
            kept.clear()
            gc.collect()

    def step(model, x):
        loss, weights = _plain(model, x)
        y = model.weights * 3
        return loss.item(), weights, y + model.gradient, y

    mine, theirs = Model(rt.array, inside), Model(rt.array)
    f, held = rt.graph(partial(step, mine)), []
    for turn[0] in range(60):
        x = np.full(4, 1 + turn[0] / 60)
        held.append((f(rt.array(x)), step(theirs, rt.array(x))))
        for found, expected in held:
            assert _bytes(found) == _bytes(expected)
        assert _state(mine) == _state(theirs)
        del held[: len(held) - turn[0] % 4]
    assert f.stats().replays > 20
