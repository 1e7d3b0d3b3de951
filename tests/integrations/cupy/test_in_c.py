"""Functions of CuPy's arrays that are called often: C looks at these, and launches."""

from __future__ import annotations

import gc
from collections import deque

import numpy as np
import pytest

import sapwood as sw
from tests.support.frameworks import Unlayered

pytestmark = pytest.mark.gpu
CALLS = 40


def _step(x, w):
    return x * w + 1, (x - w).sum()


def _same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert one.tobytes() == other.tobytes()


@pytest.fixture
def rt(cp):
    """Return a runtime with nothing before the driver: C plays fast replays."""
    assert cp
    made = Unlayered("cupy")
    yield made.runtime
    gc.collect()
    made.finish()


@pytest.fixture
def ready(rt, cp):
    """Return a function that was replayed often, on other arguments each time."""
    f, w = rt.graph(_step), cp.arange(12.0).reshape(3, 4)
    for i in range(CALLS):
        x = cp.full((3, 4), float(i))
        _same(f(x, w), _step(x, w))
    assert f.stats().replays > CALLS // 2
    return f, w


@pytest.mark.parametrize("kept", [1, 2, 3, 10])
def test_other_arguments_and_kept_results(ready, cp, kept):
    """Each call has the values of its own arguments, and what is kept stays."""
    f, w = ready
    held = deque(maxlen=kept)
    for i in range(CALLS):
        x = cp.random.default_rng(i).random((3, 4))
        held.append((f(x, w), _step(x, w)))
        for found, expected in held:
            _same(found, expected)
        cp.multiply(w, 1.5, out=w)


OTHERS = {
    "column-major": lambda x, _: x.T.copy().T,
    "every second": lambda x, _: x.repeat(2, axis=1)[:, ::2],
    "another dtype": lambda x, _: x.astype("f4"),
    "another shape": lambda x, _: x.T.copy().reshape(3, 4)[:1],
    "less aligned": lambda x, _: x.ravel().repeat(2)[1:13].reshape(3, 4),
    "the other argument": lambda _, w: w,
}


@pytest.mark.parametrize("name", OTHERS)
def test_arguments_that_look_otherwise(ready, cp, name):
    """They get recordings of their own; those that were there go on."""
    f, w = ready
    for i in range(CALLS):
        x = cp.full((3, 4), float(i))
        other = OTHERS[name](x, w)
        _same(f(other, w), _step(other, w))
        _same(f(x, w), _step(x, w))


def test_an_argument_that_is_given_another_shape(ready, cp):
    """In place: the array stays the same."""
    f, _ = ready
    x, y = cp.arange(12.0).reshape(3, 4), cp.arange(12.0).reshape(3, 4)
    for _ in range(CALLS):
        _same(f(x, y), _step(x, y))
    x.shape = y.shape = (4, 3)
    for _ in range(CALLS):
        _same(f(x, y), _step(x, y))


def test_results_that_are_fed_back(rt, cp):
    """``y = f(y)``, with what was there before held or not."""
    f = rt.graph(lambda y: y * 0.5 + 1)
    for width in (1, 3):
        held, y, other = deque(maxlen=width), cp.ones(7), cp.ones(7)
        for _ in range(CALLS):
            y, other = f(y), other * 0.5 + 1
            held.append((y, other.copy()))
            for found, expected in held:
                _same([found], [expected])


def test_other_memory_of_other_streams(rt):
    """Arrays of the runtime's are waited for, whoever fills them."""
    f, side = rt.graph(lambda x: x * 2), rt.stream()
    big = rt.array(np.ones((1500, 1500)))
    for i in range(CALLS):
        f(rt.array(np.full(1 << 16, float(i))))
    for i in range(CALLS):
        with side:
            for _ in range(3):
                big = big @ big * 0
            x = rt.array(np.full(1 << 16, float(i)))
        found = np.asarray(f(x))
        assert found.tobytes() == np.full(1 << 16, 2.0 * i).tobytes()


def test_a_donated_argument_is_not_used(rt):
    """Nor is any memory of another argument, once one was donated."""
    f, ends = rt.graph(lambda x: x * 2), rt.graph(lambda x: x + 1, donate="x")
    for i in range(CALLS):
        x = rt.array(np.full(5, float(i)))
        _same([f(x)], [x * 2])
    for i in range(CALLS):
        x, y = (rt.array(np.full(5, float(i + k))) for k in range(2))
        ends(x)
        with pytest.raises(sw.StaleOutput):
            f(x)
        _same([f(y)], [y * 2])


def test_results_of_many_arrays_are_copied_at_once(rt, cp):
    """A few are copied by CuPy, more of them together."""
    for count in (1, 2, 4, 5, 20):
        f = rt.graph(lambda x, count=count: [x * k for k in range(count)])
        given = [cp.full((2, 3), float(i)) for i in range(CALLS)]
        held = [(f(x), x) for x in given]
        for found, x in held:
            _same(found, [x * k for k in range(count)])
        assert f.stats().replays > CALLS // 2
