"""Law 18: every address in a recording is accounted for; a foreign one is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import sapwood as sw
from sapwood.driver.api import CopiesOp, CopyOp, KernelOp, SetOp
from tests.support.frameworks import on_host


def _hidden(array):
    """Return a way to an array that no name leads to."""
    return itertools.repeat(array)


@pytest.mark.every_framework
def test_a_foreign_address_is_refused(rt, bits):
    """An array that nothing names cannot be guarded: a `CaptureError` with the line."""
    secret, x = rt.array(np.full(4, 5.0)), rt.array(np.ones(4))
    source = _hidden(secret)

    def f(x):
        y = x + 1
        return y * next(source)  # the line

    g = rt.graph(f, fullgraph=True)
    with pytest.raises(sw.CaptureError) as caught:
        for _ in range(3):
            g(x)
    file, line = caught.value.where.rsplit(":", 1)
    assert file == __file__
    assert int(line) == f.__code__.co_firstlineno + 2
    assert "argument" in caught.value.remedy
    assert g.stats().recordings == 0
    del caught
    assert bits(secret, x) == bits(rt.array(np.full(4, 5.0)), rt.array(np.ones(4)))
    other = rt.graph(lambda x: x * 2, fullgraph=True)
    for _ in range(4):
        assert on_host(other(x)).tolist() == [2] * 4


@pytest.mark.every_framework
@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_a_foreign_address_that_is_written(rt):
    """So is one that is only written; with ``"eager"`` it is written once a call."""
    secret = rt.array(np.zeros(4))
    source = _hidden(secret)

    def f(x):
        into = next(source)
        into += x
        return x * 1

    g, x = rt.graph(f), rt.array(np.ones(4))
    for i in range(5):
        g(x)
        assert on_host(secret).tolist() == [i + 1] * 4
    assert g.stats().recordings == 0
    with pytest.raises(sw.CaptureError):
        h = rt.graph(f, fullgraph=True)
        for _ in range(3):
            h(x)


@pytest.mark.every_framework
def test_a_foreign_array_is_no_result(rt):
    """Nor may one be returned that nothing names, though no operation uses it."""
    source, x = _hidden(rt.array(np.zeros(4))), rt.array(np.ones(4))
    f = rt.graph(lambda x: (x + 1, next(source)), fullgraph=True)
    with pytest.raises(sw.CaptureError):
        for _ in range(3):
            f(x)
    assert f.stats().recordings == 0


def test_a_view_of_a_known_array_is_known(same):
    """Part of an argument is accounted for, however it is reached."""

    def make(w):
        x = w.values(12)
        return x[2:6], x

    same(lambda part, x: (part * x[6:10], x[::3] + part), make)


@pytest.mark.every_framework
def test_a_number_that_looks_like_an_address(agree):
    """A constant that equals an address is a constant, where the leaf moves, too."""

    def program(w):
        f = w.graph(lambda x, n: (x + n, x * 0 + n, x[1:]))
        first = None
        for _ in range(6):
            x = w.array(np.arange(4))
            first = first or w.framework.address(x)
            small = f(x, first)
            yield [part - first for part in small[:2]], small[2]

    assert agree(program).count("replays") > 0


@pytest.fixture
def keeping(make_rig):
    """Return a rig whose recorded layer keeps every call."""
    return make_rig(keep_calls=True)


@pytest.fixture
def launchable(keeping, monkeypatch):
    """Return the list that the ops of all graphs are put into that are instantiated."""
    device, ops = keeping.device, []
    instantiate = device.instantiate

    def noted(graph):
        ops.extend(map(device.node_op, device.nodes(graph)))
        return instantiate(graph)

    monkeypatch.setattr(device, "instantiate", noted)
    return ops


def _touched(rig, launchable):
    """Yield ``(lo, hi)`` of all device memory that launchable or set nodes touch."""
    calls = rig.recorded.calls
    for op in (*launchable, *(args[2] for call, args in calls if call == "set_op")):
        if isinstance(op, KernelOp):
            for pointer in rig.device.pointers(op.function, op.params):
                yield pointer.lo, pointer.hi
        elif isinstance(op, CopiesOp):
            for starts in (op.dsts, op.srcs):
                for lo, size in zip(starts, op.sizes, strict=True):
                    yield lo, lo + size
        elif isinstance(op, CopyOp):
            yield op.src, op.src + op.size
            yield op.dst, op.dst + op.size
        elif isinstance(op, SetOp):
            yield op.dst, op.dst + op.size


def test_every_address_is_accounted_for(keeping, launchable):
    """All memory that linked graphs touch is their range, a leaf or ambient."""
    rig, rt = keeping, keeping.runtime
    rng, weight = rt.generator(1), rt.array(np.ones((16, 16)))
    holder = {"h": rt.array(np.zeros(16))}

    def fn(x, state, _):
        holder["h"] = holder["h"] * 0.5 + x
        state += rng.random((16,)) @ weight
        return state[::2], x.reshape(4, 4).T

    f = rt.graph(fn)
    known = [rng.state, weight, holder["h"]]
    reserved = []
    for _ in range(9):
        x, state = rt.array(np.ones(16)), rt.array(np.zeros(16))
        known += [x, state]
        rig.recorded.reset()
        launchable.clear()
        f(x, state, x[1:])
        reserved += [range_.base for range_ in rt._recordings.ranges()]
        calls = rig.recorded.calls
        reserved += [args[0] for call, args in calls if call == "unreserve"]
        known.append(holder["h"])
        spans = [array.span for array in known]
        spans += [(base, base + (1 << 37)) for base in reserved]
        for lo, hi in _touched(rig, launchable):
            if lo < hi:
                assert any(start <= lo and hi <= end for start, end in spans)
    assert f.stats().replays > 0
