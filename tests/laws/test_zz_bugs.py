"""Failing at audit time. Copy to tests/laws/ and run with its conftest."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import numpy as np
import pytest

import sapwood as sw

BINDS = {
    "view": lambda o: setattr(o, "h", o.w[::-1]),
    "itself": lambda o: setattr(o, "h", o.w),
    "swap": lambda o: o.__dict__.update(h=o.w, w=o.h),
}


def _swap(o):
    o.h, o.w = o.w, o.h


BINDS["swap"] = _swap


@pytest.mark.parametrize("bind", BINDS)
def test_slots_bound_to_arrays_that_no_op_uses(agree, bind):
    """Law 10: binding a slot to an ambient array, or a view of it, is replayed."""

    def program(w):
        o = SimpleNamespace(w=w.values(4), h=w.values(4))
        f = w.graph(lambda x: (BINDS[bind](o), x + 1)[1])
        for _ in range(6):
            yield f(w.values(3)), o.w, o.h

    agree(program)


@pytest.mark.parametrize("marked", [True, False])
def test_a_stream_that_dies_in_a_cycle_with_its_arrays(rt, marked):
    """Law 13: the heap's blocks outlive the stream; later work must not fail."""
    for _ in range(20):
        s, h = rt.stream(), []
        with s:
            x = rt.array(np.arange(64.0)) + 1
        if marked:
            x + 1  # noqa: B018 - the current stream waits for s
        h.extend([h, s, x])
        del s, x, h
        gc.collect()
        z = rt.array(np.arange(64.0)) + 1
        z = z * z + z
        assert float(z[1]) == 6


def test_aliasing_may_differ_between_warm_up_and_recording(agree):
    """Law 9: an ambient array that was the argument in the warm-up, and is not now."""

    def program(w):
        o, a = SimpleNamespace(w=w.values(3)), w.values(3)

        def fn(x):
            o.w[...] = x

        f = w.graph(fn)
        o.w = a
        f(a)
        for _ in range(5):
            o.w = w.values(3)
            f(a)
            yield o.w, a

    agree(program)


def test_overlap_may_differ_between_warm_up_and_recording(agree):
    """The same with bytes that overlap in part, and with two ambient arrays."""

    def program(w):
        o, a = SimpleNamespace(w=w.values(8), v=w.values(8)), w.values(8)

        def fn(x):
            o.w[1:] = x[:-1]
            o.v[1:] += o.w[:-1]

        f = w.graph(fn)
        o.w = o.v = a
        f(a)
        for _ in range(5):
            o.w, o.v = w.values(8), w.values(8)
            f(a)
            yield o.w, o.v, a

    agree(program)


def test_warming_inside_a_graphed_function(rt):
    """Law 14: `warm` in a warm-up or capture does nothing, or is refused by name."""
    g = rt.graph(lambda x: x * 2, name="inner")
    x = rt.array(np.arange(3.0))

    def fn(x):
        g.warm(x)
        return x + 1

    f = rt.graph(fn)
    try:
        for _ in range(4):
            assert np.asarray(f(x)).tolist() == [1, 2, 3]
    except sw.SapwoodError as error:
        assert "warm" in str(error)


def test_a_state_carried_by_a_slot_settles(rt):
    """Law 4, by a slot: ``o.h = o.h + x`` takes as few recordings as ``h = f(h)``."""
    o = SimpleNamespace(h=rt.array(np.zeros(3)))

    def fn(x):
        o.h = o.h + x

    f, x = rt.graph(fn), rt.array(np.ones(3))
    for i in range(100):
        f(x)
        assert float(o.h[0]) == i + 1
    stats = f.stats()
    assert stats.recordings <= 3
    assert stats.copied_bytes <= 24 * 53


def test_options_and_misuse_are_refused_by_name(make_rig):
    """Wrong limits, wrong options, static methods and closed runtimes: MisuseError."""
    rt = make_rig().runtime
    for limit in (-1, 1.5, "1GB"):
        with pytest.raises((sw.MisuseError, TypeError, ValueError), match="memory_limit"):
            sw.Runtime("emulated", memory_limit=limit).close()
    with pytest.raises((sw.MisuseError, TypeError), match="device"):
        sw.Runtime(3)
    with pytest.raises((sw.MisuseError, TypeError), match=r"(graph|option).*nme|nme.*(graph|option)"):
        rt.graph(lambda x: x, nme="x")
    with pytest.raises(sw.MisuseError, match="staticmethod"):
        rt.graph(staticmethod(lambda x: x))
    rt.close()
    with pytest.raises(sw.MisuseError, match="closed"):
        rt.graph(lambda x: x)
    with pytest.raises(sw.MisuseError, match="closed"):
        rt.__enter__()
