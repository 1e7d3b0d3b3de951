"""Law 17: what a hit costs, in driver calls. Counted, not timed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.frameworks import hit, on_host
from tests.support.rig import CUDA


@pytest.mark.every_framework
@pytest.mark.parametrize("k", [0, 1, 2, 3, 8])
def test_copied_leaves_cost_a_call_together(rig, framework, k):
    """With k copied leaves that moved, one call more, no allocation, no mapping.

    Torch's cost a call each at most.
    """
    rt = rig.runtime
    f = rt.graph(lambda fixed, *moving: sum(moving, fixed) * 2)
    fixed = rt.array(np.ones(8))
    held = [[rt.array(np.ones(8)) for _ in range(k)] for _ in range(12)]
    for moving in held[:5]:
        f(fixed, *moving)
    for moving in held[5:]:
        counts = hit(rig, f, fixed, *moving)
        if framework.xp is np:
            assert counts == {"launch_graph": 1} | ({"set_op": 1} if k else {})
        assert counts["launch_graph"] == 1
        assert sum(counts.values()) <= k + 1


@pytest.mark.every_framework
def test_copies_are_per_storage(rig):
    """Leaves that overlap are copied once, together."""
    rt = rig.runtime
    f = rt.graph(lambda a, b, c: a.sum() + b.sum() + c.sum())
    held = []
    for _ in range(10):
        x = rt.array(np.arange(12.0))
        held.append(x)
        args = x[:8], x[2:], x[::2]
        if len(held) > 5:
            assert sum(hit(rig, f, *args).values()) <= 2
        else:
            f(*args)


@pytest.mark.every_framework
def test_copied_bytes_are_the_leaves(rt):
    """The bytes that are copied are those of the leaves that moved, and no more."""
    f = rt.graph(lambda fixed, x, y: (fixed * x).sum() + y.sum())
    fixed, held = rt.array(np.ones(1000)), []
    for _ in range(6):
        held.append((rt.array(np.ones(1000)), rt.array(np.ones(10))))
        f(fixed, *held[-1])
    before = f.stats()
    for i in range(10):
        f(fixed, *held[i % 6])
    after = f.stats()
    assert after.replays == before.replays + 10
    assert after.copied_bytes - before.copied_bytes <= 10 * (8000 + 80)


def test_an_unchanged_call_is_one_driver_call(rig):
    """Pinned arguments, ambient arrays, generators and constants cost nothing."""
    rt = rig.runtime
    rng, weight = rt.generator(0), rt.array(np.ones((4, 4)))

    def fn(x, n):
        nonlocal_weight = weight
        nonlocal_weight += x * n
        return rng.random((4,)) @ weight, x[1:], x

    f, x = rt.graph(fn), rt.array(np.ones(4))
    for _ in range(4):
        f(x, 2)
    for _ in range(3):
        assert hit(rig, f, x, 2) == {"launch_graph": 1}


@pytest.mark.every_framework
def test_a_chain_is_one_driver_call_each(rig):
    """An inherited argument costs nothing."""
    rt = rig.runtime
    f, g = rt.graph(lambda x: x * 2), rt.graph(lambda h: (h + 1, h.sum()))
    x = rt.array(np.ones(4))
    for _ in range(8):
        h = f(x)
        y = g(h)
    rig.recorded.reset()
    before = f.stats().replays + g.stats().replays
    for _ in range(10):
        h = f(x)
        y = g(h)
    assert f.stats().replays + g.stats().replays == before + 20
    assert rig.recorded.counts() == {"launch_graph": 20}
    assert on_host(y[0]).tolist() == [3] * 4


@pytest.mark.every_framework
def test_an_argument_that_stays_is_not_aimed_at_again(rig):
    """A copied leaf that is where it was needs no call of its own."""
    rt = rig.runtime
    f = rt.graph(lambda x: x * 2)
    arrays = [rt.array(np.ones(4)) for _ in range(5)]
    for x in arrays:
        f(x)
    for x in arrays:
        hit(rig, f, x)
        assert hit(rig, f, x) == {"launch_graph": 1}


@pytest.mark.minimal
def test_as_many_ops_as_eager(rig):
    """A replay launches one graph where eager launches every kernel."""
    rt = rig.runtime

    def fn(x):
        for _ in range(20):
            x = x * 1.5
        return x

    f, x = rt.graph(fn), rt.array(np.ones(4))
    for _ in range(3):
        f(x)
    rig.recorded.reset()
    fn(x)
    assert rig.recorded.counts()["launch"] == 20
    assert hit(rig, f, x) == {"launch_graph": 1}


def _step(x, weights):
    return (x * 2).sum(), [weight * x for weight in weights]


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_kept_is_copied_at_once_and_nothing_else(rig, whole):
    """``losses.append(step(x))``: one copy a call, whatever else a call returns."""
    rt = rig.runtime
    f, x = rt.graph(_step), rt.array(np.arange(8.0))
    weights = [rt.array(np.full(8, float(i))) for i in range(20)]
    kept, grown = [], 0
    for i in range(60):
        before = f.stats()
        rig.recorded.reset()
        made = f(x, weights)
        counts = rig.recorded.counts()
        kept.append(made if whole else made[:1])
        if i >= 30:
            after = f.stats()
            assert after.replays == before.replays + 1
            assert counts.pop("launch_graph") == 1
            assert counts.pop("copy") == 1
            grown += bool(counts)
            assert counts.keys() <= {"create", "map", "set_access"}
            # The loss alone, or with all of the gradients.
            assert after.escaped == before.escaped + (21 if whole else 1)
        del made
    assert grown < 15, "the heap grows by pages"
    for loss, *others in kept:
        assert float(loss) == 56.0
        for i, gradient in enumerate(others[0] if whole else ()):
            assert np.asarray(gradient).tolist() == [float(i * k) for k in range(8)]


def test_what_was_copied_out_together_goes_with_the_last_of_it(rig):
    """Outputs that share an allocation hold it until all of them are dropped."""
    rt = rig.runtime
    f, x = rt.graph(_step), rt.array(np.arange(8.0))
    weights = [rt.array(np.full(8, float(i))) for i in range(4)]
    kept = [f(x, weights) for _ in range(40)][10:]
    losses = [loss for loss, _ in kept]
    before = rt.memory_stats()["heap.bytes"]
    kept.clear()
    assert rt.memory_stats()["heap.bytes"] == before
    assert [float(loss) for loss in losses] == [56.0] * 30
    losses.clear()
    assert rt.memory_stats()["heap.bytes"] <= before - 30 * 512
    assert float(f(x, weights)[0]) == 56.0


def test_what_is_read_costs_no_copy(rig):
    """Where a function goes on by values, what it has is where the parts made it."""
    rt = rig.runtime

    def fn(x):
        first, other = x * 2, x + 1
        if first.sum() > 0:
            other = other * first
        if other.max() > 0:
            return (first + other).sum()
        return first

    f, x = rt.graph(fn), rt.array(np.ones(4))
    for _ in range(6):
        f(x)
    for _ in range(3):
        before = f.stats()
        rig.recorded.reset()
        f(x)
        counts = rig.recorded.counts()
        assert counts["launch_graph"] == 3
        assert f.stats().escaped - before.escaped == 1  # the result
        # Nobody tells what kernels of CuPy's write: the argument is saved, too.
        assert counts["copy"] <= 2 if rig.variant == CUDA else counts["copy"] == 1
        assert f.stats().replays == before.replays + 1
