"""Graphed functions are copied and pickled as plain functions and methods are."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import sapwood as sw


class Model:
    """Has a graphed method, and graphs another one by itself."""

    def __init__(self, rt, rate):
        self.rate = rt.array(np.full(3, rate))
        self.step = rt.graph(self.plain)

    def plain(self, x):
        """Return something that depends on the object."""
        return x * self.rate + 1


@sw.graph
def doubled(x):
    """Return twice as much."""
    return x * 2


def _called(f, x, times=4):
    return [np.asarray(f(x)).tolist() for _ in range(times)]


@pytest.mark.parametrize("calls", [0, 1, 2, 5])
def test_a_copy_of_an_object_has_recordings_of_its_own(rt, calls):
    """And reads its own arrays, however often the first was called."""
    model, x = Model(rt, 2.0), rt.array(np.ones(3))
    _called(model.step, x, calls)
    other = copy.deepcopy(model)
    other.rate = rt.array(np.full(3, 5.0))
    assert other.step is not model.step
    for _ in range(2):
        assert _called(model.step, x) == [[3.0] * 3] * 4
        assert _called(other.step, x) == [[6.0] * 3] * 4
    assert other.step.stats().recordings == 1


def test_a_method_of_a_copy_is_the_copys(rt):
    """Also where it is copied by itself, as plain methods are."""

    class Held:
        def __init__(self):
            self.rate = 2.0

        @rt.graph
        def step(self, x):
            return x * self.rate

    held, x = Held(), rt.array(np.ones(3))
    assert _called(held.step, x) == [[2.0] * 3] * 4
    step = copy.deepcopy(held.step)
    step.__self__.rate = 3.0
    assert _called(step, x) == [[3.0] * 3] * 4
    assert _called(held.step, x) == [[2.0] * 3] * 4
    assert copy.copy(held.step).__self__ is held


def test_a_function_is_its_own_copy(rt):
    """As a plain function is."""
    f = rt.graph(lambda x: x * 2)
    assert copy.copy(f) is f
    assert copy.deepcopy([f])[0] is f


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_function_is_pickled_by_its_name(protocol):
    """So that it may be sent to another process, which graphs its own."""
    assert pickle.loads(pickle.dumps(doubled, protocol)) is doubled


class Callable:
    """What is called, and has no name of its own."""

    def __call__(self, x):
        return x * 3


def test_what_has_no_name_is_graphed_again(rt):
    """On the default runtime, with the same options."""
    f = rt.graph(Callable(), max_variants=2)
    again = pickle.loads(pickle.dumps(f))
    assert type(again) is type(f)
    assert type(again.__wrapped__) is Callable
    assert again._options == f._options
