"""Host data that a function names or writes down is data of its recordings."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

TABLE = np.array(np.arange(12.0).reshape(3, 4))
ROWS = np.array([2, 0])
MASK = np.array([True, False, True])
LARGE = np.zeros(1 << 14)
OWN = SimpleNamespace(rows=np.array([1, 2]), scale=np.full(4, 0.5, np.float32))
LISTS = SimpleNamespace(rows=[0, 2], values=[1.0, 2.0, 3.0, 4.0])
SKIP = "ignore::sapwood.GraphSkipWarning"


def _put(x, value):
    y = x.copy()
    y[1:] = value
    return y


RECORDED = {
    "an index": lambda x: x[ROWS],
    "an index and a slice": lambda x: x[1:, ROWS],
    "an index of an object": lambda x: x[OWN.rows] * 2,
    "a part of an index": lambda x: x[ROWS[1:]],
    "a mask": lambda x: x[MASK],
    "an array": lambda x: x + np.asarray(TABLE, like=x),
    "its transpose": lambda x: x.T @ np.array(TABLE.T, like=x).T,
    "another dtype": lambda x: x * np.array(OWN.scale, np.float64, like=x),
    "written": lambda x: _put(x, TABLE[1:]),
    "a list": lambda x: x + np.array([1.0, 2.0, 3.0, 4.0], like=x),
    "a nest of lists": lambda x: x @ np.array([[1.0]] * 4, like=x),
    "a list that is named": lambda x: x + np.array(LISTS.values, like=x),
    "rows that are named": lambda x: x[LISTS.rows],
    "nothing": lambda x: x[ROWS[:0]],
}


@pytest.mark.parametrize("name", RECORDED)
def test_it_is_recorded(same, name):
    """Results are those of eager calls, and replays bring it anew."""
    same(lambda x: RECORDED[name](x), lambda w: (w.values(3, 4),))


@pytest.fixture
def _restored():
    held = TABLE, ROWS, MASK, LARGE, OWN.rows, OWN.scale
    before = [each.copy() for each in held]
    yield
    for each, was in zip(held, before, strict=True):
        each[...] = was


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize("name", RECORDED)
def test_a_change_of_it_is_noticed(agree, name):
    """Between any two calls, in place."""

    def program(world):
        f = world.graph(lambda x: RECORDED[name](x))
        for i in range(12):
            yield f(world.values(3, 4))
            TABLE[i % 3, 1] += 1
            if i % 3 == 2:
                ROWS[:] = ROWS[::-1].copy()
                OWN.scale += 1
                OWN.rows[0] = i % 2
                MASK[i % 2] ^= True
        ROWS[:], OWN.rows[:], MASK[:] = (2, 0), (1, 2), (True, False, True)
        TABLE[:] = np.arange(12.0).reshape(3, 4)
        OWN.scale[:] = 0.5

    agree(program)


def _drawn(x):
    return x + np.array(np.random.default_rng().random(4), like=x)


REFUSED = {
    "a large array": lambda x: x + np.array(LARGE[:4], like=x),
    "what comes of a large one": lambda x: (
        x + np.array(LARGE.reshape(-1, 4)[3], like=x)
    ),
    "what is computed of one": lambda x: x + np.array(LARGE[[1, 2, 3, 4]] * 1, like=x),
    "a draw": _drawn,
}


@pytest.mark.usefixtures("_restored")
@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("name", REFUSED)
def test_what_nobody_compares_runs_eagerly(rt, name):
    """Its contents may change, and no guard would see that."""
    f = rt.graph(REFUSED[name])
    for i in range(5):
        x = rt.array(np.ones(4))
        LARGE[:] = i
        found = np.asarray(f(x))
        if name != "a draw":
            assert found.tolist() == [i + 1.0] * 4
    assert f.stats().replays == 0
    reason = f.stats().skipped[0][0]
    assert "host data" in reason or ("differs between" in reason and name == "a draw")


# Host data that the function makes itself.


def _filled(x, n):
    return x + np.asarray(np.full(4, float(n)), like=x)


def _computed(x, n):
    weights = np.exp(-np.arange(4.0) * n)
    return x * np.asarray(weights / weights.sum(), like=x)


def _sorted(x, n):
    return x[np.argsort(np.array([3, 1, 2, 0]) * n)]


def _assigned(x, n):
    x[:] = np.linspace(0, n, 4)
    return x * 2


def _chosen(x, n):
    return x[np.array([0.1, 0.9, 0.4, 0.6]) * n > 0.5]


@pytest.mark.parametrize("fn", [_filled, _computed, _sorted, _assigned, _chosen])
def test_what_is_made_of_guarded_values_is_data(agree, fn):
    """It is as right as the plain values that it is made of."""

    def program(world):
        f = world.graph(lambda x, n: fn(x, n))
        for n in (1, 2, 1, 2, 1, 2, 1, 2):
            yield f(world.values(4), n)

    world = agree(program)
    assert world.count("passed_through") == 0
    assert world.count("replays") >= 2


@pytest.mark.filterwarnings(SKIP)
def test_what_is_made_and_kept_runs_eagerly(rt):
    """Whoever keeps it may write it, and no guard would see that."""
    kept = {}

    class Hidden:
        """Keeps an array where nobody looks: in what a C function holds."""

        def __init__(self):
            self.add = kept.setdefault

        def __call__(self, x):
            return x + np.asarray(self.add("a", np.ones(4)), like=x)

    f = rt.graph(Hidden())
    for i in range(6):
        assert np.asarray(f(rt.array(np.ones(4)))).tolist() == [2.0 + i] * 4
        kept["a"] += 1
