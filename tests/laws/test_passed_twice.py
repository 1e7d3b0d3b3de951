"""An array that is passed more than once: replayed like any other call, and right."""

from __future__ import annotations

import random

import pytest

pytestmark = pytest.mark.every_framework

CALLS = 24


def _shown(q, k, v):
    return q * k + v, k, {"v": v, "q": [q]}


def _written(q, k, v):
    q *= 0.5
    k += v
    return q - k


def _asked(q, k, v):
    return q + 1 if q is k else (q - v if k is v else q * v)


@pytest.mark.parametrize("fn", [_shown, _written, _asked])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_an_array_is_passed_again(agree, fn, kept, seed):
    """The same places or others, the same array or another, in any order."""

    def program(w):
        rng, keep = random.Random(seed), []
        x, y, z = (w.values(4) for _ in range(3))
        f = w.graph(fn)
        for _ in range(3):
            passed = rng.choice([(x, x, x), (x, y, x), (x, x, y), (y, x, x)])
            for _ in range(CALLS // 3):
                some = rng.choice([passed, tuple([z if a is x else a for a in passed])])
                result = f(*some)
                keep += [result] * kept
                yield result, x, y, z, keep[-3:]

    agree(program)


@pytest.mark.parametrize("kept", [False, True])
def test_views_of_it_are_others(agree, kept):
    """What shares a storage and is another array is not taken for the same."""

    def program(w):
        x, keep = w.values(6), []
        f = w.graph(lambda a, b, named: (a + b, named["c"], a is b))
        for i in range(CALLS):
            b = x if i % 8 < 6 else x[:]
            result = f(x, b, {"c": x})
            keep += [result] * kept
            yield result, keep[-2:]

    agree(program)


def test_calls_that_pass_an_array_twice_are_replayed_alike(rt, framework):
    """No more of the driver is asked for them than for others."""
    f = rt.graph(lambda q, k: q * k)
    x, y = (framework.array(rt, [1.0, 2.0]) for _ in range(2))
    for _ in range(20):
        f(x, x)
    assert f.stats().recordings == 1
    assert f.stats().replays >= 17
    assert f(y, y) is not None
