"""Arrays that `functools.lru_cache` keeps: tables that a first call computes."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import sapwood as sw

CALLS = 9


def _one(w):
    base = w.values(8)

    @functools.cache
    def table(n):
        return base[:n] * 2

    return lambda x: x + table(x.shape[0])


def _a_nest(w):
    base = w.values(8)

    @functools.cache
    def tables(n):
        return {"sum": base[:n].sum(), "parts": [base[:n] + 1, (base[:n] * 3,)]}

    def fn(x):
        found = tables(x.shape[0])
        return x * found["sum"] + found["parts"][0], x - found["parts"][1][0]

    return fn


def _of_a_method(w):
    class Model:
        def __init__(self):
            self.base = w.values(8)

        @functools.lru_cache(maxsize=16)  # noqa: B019 - as people write it
        def table(self, n):
            return self.base[:n] * 2

        def __call__(self, x):
            return x + self.table(x.shape[0])

    return Model()


def _behind_another(w):
    base = w.values(8)

    @functools.cache
    def inner(n):
        return base[:n] * 2

    @functools.cache
    def outer(n):
        return inner(n) + 1

    return lambda x: x * outer(x.shape[0]) - inner(x.shape[0])


MADE = [_one, _a_nest, _of_a_method, _behind_another]


@pytest.mark.every_framework
@pytest.mark.parametrize("make", MADE)
def test_tables_are_read_where_they_are(agree, make):
    """The second call finds them, and the third is recorded; sizes take turns."""

    def program(w):
        f, kept = w.graph(make(w)), []
        for size in (4, 6):
            for _ in range(CALLS):
                kept.append(f(w.values(size)))
                yield kept
        kept.clear()
        for i in range(CALLS):
            yield f(w.values((4, 6)[i % 2]))

    world = agree(program)
    assert world.count("warmups") == 4
    assert world.count("passed_through") == 0
    assert world.count("replays") >= 2 * CALLS - 2


@pytest.mark.every_framework
def test_a_table_that_is_written(agree):
    """By the function, and by others: it is the memory that all of them see."""

    def program(w):
        base, seen = w.values(4), []

        @functools.cache
        def table():
            seen.append(base * 2)
            return seen[0]

        def fn(x):
            y = table()
            y += 1
            return x * y

        f = w.graph(fn)
        table()
        for i in range(CALLS):
            if i == 5:
                seen[0][...] = 7
            yield f(w.values(4)), seen[0] + 0

    agree(program)


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_a_table_that_is_forgotten_in_turn(rt):
    """There is room for one: the recordings compute it, and nothing stale is kept."""
    base = rt.array(np.arange(8.0))

    @functools.lru_cache(maxsize=1)
    def table(n):
        return base[:n] * 2

    f = rt.graph(lambda x: x + table(x.shape[0]))
    for i in range(30):
        n = 3 + i % 2
        y = f(rt.array(np.ones(n)))
        assert np.asarray(y).tolist() == [1 + 2 * k for k in range(n)]
        if i % 7 == 0:
            assert np.asarray(table(n)).tolist() == [2 * k for k in range(n)]
    assert f.stats().warmups + f.stats().passed_through <= 30


def test_what_cached_functions_read_is_guarded(rt):
    """A rate that changes makes another recording, once the cache is cleared."""
    rate, base = [2.0], rt.array(np.ones(3))

    @functools.cache
    def table():
        return base * rate[0]

    f, x = rt.graph(lambda x: x + table()), rt.array(np.zeros(3))
    for _ in range(5):
        assert np.asarray(f(x)).tolist() == [2] * 3
    rate[0] = 5.0
    table.cache_clear()
    for _ in range(5):
        assert np.asarray(f(x)).tolist() == [5] * 3


def test_a_function_that_fills_its_cache_in_a_capture_keeps_nothing(rt, hidden):
    """What it would keep was never computed."""
    base = rt.array(np.ones(3))

    @functools.cache
    def table(k):
        return base * (2.0 + k * 0)

    f, x = rt.graph(lambda x: x + table(hidden())), rt.array(np.zeros(3))
    for i in range(6):
        hidden(i)  # no guard sees it, so that each call computes one
        assert np.asarray(f(x)).tolist() == [2] * 3
        assert all(np.asarray(table(k)).tolist() == [2] * 3 for k in range(i + 1))


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_recordings_that_read_tables_are_in_no_file(rt, tmp_path):
    """Nothing says in another process what was computed in this one."""
    base = rt.array(np.ones(3))

    @functools.cache
    def table():
        return base * 2

    f, x = rt.graph(lambda x: x + table()), rt.array(np.zeros(3))
    for _ in range(5):
        f(x)
    assert f.stats().replays
    with pytest.raises(sw.StoreError, match=r"lru_cache|framework loaded"):
        sw.save(f, tmp_path / "f.sapwood")
