"""Recording on a device that cannot tell addresses from numbers: what moves is copied.

The same machinery serves GPUs; here it runs everywhere, on the emulated device.
"""

from __future__ import annotations

import gc
import itertools
import random

import numpy as np
import pytest

import sapwood as sw
from sapwood.driver.emulated import Emulated
from sapwood.tree.call.roles import Role
from sapwood.units import Size
from tests.support.inexact import Inexact


@pytest.fixture
def rt():
    """Return a runtime on such a device, leak-checked at the end."""
    device = Emulated(Size(1 << 28), Size(1 << 16), "latest")
    with sw.Runtime(device=Inexact(device)) as rt:
        yield rt
    gc.collect()
    assert {kind: n for kind, n in device.live_handles().items() if n} == {}
    device.close()


def _host(*nest):
    return [np.asarray(x).tolist() for x in nest]


def _roles(rt):
    return [[use.role for use in node.places] for node in rt._recordings.nodes]


def test_what_moves_is_copied(rt):
    """However large, and by one recording."""
    f = rt.graph(lambda x, y: (x * 2 + y, x.sum()))
    kept, copied = [], []
    for i in range(8):
        x, y = rt.array(np.full(6, float(i))), rt.array(np.ones(6))
        kept.append((x, y))
        assert _host(*f(x, y)) == [[2.0 * i + 1] * 6, 6.0 * i]
        copied.append(f.stats().copied_bytes)
    each = copied[1]
    assert copied[1:] == [each * i for i in range(1, 8)]
    assert each > 0
    assert f.stats().recordings == 1
    assert _roles(rt) == [[Role.COPIED, Role.COPIED]]


def test_what_stays_is_pinned(rt):
    """Nothing of it is copied."""
    f, x = rt.graph(lambda x: x - 1), rt.array(np.ones(4))
    for _ in range(6):
        assert _host(f(x)) == [[0.0] * 4]
    assert f.stats().recordings == 1
    assert _roles(rt) == [[Role.PINNED]]


def test_a_number_that_looks_like_an_address_stays_a_number(rt):
    """One that lies in the memory of an argument that stays, while another moves."""
    base, kept = rt.array(np.arange(4)), []
    number = base.address + 8
    f = rt.graph(lambda x, base: (x + base, x * 0 + number))
    for i in range(8):
        kept.append(rt.array(np.full(4, i)))
        assert _host(*f(kept[-1], base)) == [[i, i + 1, i + 2, i + 3], [number] * 4]


def test_writes_in_place_go_where_they_belong(rt):
    """They are copied in, and back."""
    f = rt.graph(lambda x, y: np.add(x, y, out=x).sum())
    kept = []
    for i in range(8):
        x, y = rt.array(np.full(5, float(i))), rt.array(np.ones(5))
        kept.append((x, y))
        assert _host(f(x, y), x, y) == [5.0 * (i + 1), [i + 1.0] * 5, [1.0] * 5]


def test_ambient_arrays_that_move_are_copied(rt):
    """A captured name that is bound anew for every call."""

    class Holder:
        weight = None

    holder = Holder()
    f, kept = rt.graph(lambda x: x * holder.weight), []
    for i in range(12):
        holder.weight = rt.array(np.full(3, float(i)))
        kept.append((rt.array(np.full(3, 2.0)), holder.weight))
        assert _host(f(kept[-1][0])) == [[2.0 * i] * 3]
    assert f.stats().replays >= 6
    assert _roles(rt)[0] == [Role.COPIED, Role.COPIED]


def test_an_array_that_nothing_names_is_refused(rt):
    """An address that is nobody's is one all the same."""
    secret, x = itertools.repeat(rt.array(np.ones(4))), rt.array(np.ones(4))
    f = rt.graph(lambda x: x * next(secret), fullgraph=True)
    with pytest.raises(sw.CaptureError, match="neither an argument nor reachable"):
        for _ in range(3):
            f(x)


@pytest.mark.parametrize("seed", range(6))
def test_calls_at_random_equal_eager(rt, seed):
    """Arguments that stay, move, alternate, overlap and come out of replays."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    f = rt.graph(lambda x, y: (x * 3 - y, np.maximum(x, y)[1:], x))
    g = rt.graph(lambda x, y: np.add(x, y, out=x)[::2])
    pool = [rt.array(rng.integers(0, 9, 6)) for _ in range(4)]
    for _ in range(60):
        x, y = draw.choice(pool), draw.choice(pool)
        before = [np.asarray(x), np.asarray(y)]
        if draw.random() < 0.7:
            a, b, same = f(x, y)
            assert same is x
            assert _host(a) == [(before[0] * 3 - before[1]).tolist()]
            assert _host(b) == [np.maximum(*before)[1:].tolist()]
            pool[draw.randrange(4)] = draw.choice([a % 9, rt.array(before[0])])
        else:
            out = g(x, y)
            after = before[0] + before[1]
            assert _host(out, x) == [after[::2].tolist(), after.tolist()]
            x %= 9
    assert rt.stats().replays > 20
