"""Streams and events of torch's that functions name: no weak reference is made to them.

Torch leaves those dangling when the stream goes, and whoever looks then finds anything
(torch 2.11; https://github.com/pytorch/pytorch/pull/183403).
"""

from __future__ import annotations

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

SHAPE = 64, 33


class Things:
    """What the functions here find by name."""

    side = None
    events = ()


THINGS = Things()


def full(value):
    return torch.full(SHAPE, float(value), device="cuda")


def fork(x, side, done):
    here = torch.cuda.current_stream()
    y = x * 2
    side.wait_stream(here)
    with torch.cuda.stream(side):
        z = y + 1
        done.record(side)
    here.wait_event(done)
    return z * 3


def named(x):
    return fork(x, THINGS.side, THINGS.events[0])


def test_they_are_held_or_not_known(rt, same):
    """By a closure, a global, an attribute, and an item."""
    side, done = torch.cuda.Stream(), torch.cuda.Event()
    THINGS.side, THINGS.events = side, [done]
    for f in rt.graph(lambda x: fork(x, side, done)), rt.graph(named):
        for i in range(8):
            same(f(full(i)), fork(full(i), side, done))
        assert f.stats().replays >= 4
    assert weakref.getweakrefcount(side) == 0
    assert weakref.getweakrefcount(done) == 0
    THINGS.side, THINGS.events = None, ()


def test_others_take_their_place(rt, same):
    """Each is gone by the time that the next is looked for, and junk lies there."""
    f = rt.graph(named)
    for i in range(12):
        THINGS.side, THINGS.events = torch.cuda.Stream(), [torch.cuda.Event()]
        gc.collect()
        junk = [bytes([i]) * n for n in range(16, 512, 8)]
        for k in range(4):
            expected = (full(k) * 2 + 1) * 3
            same(f(full(k)), expected)
        del junk
    THINGS.side, THINGS.events = None, ()
    del f
    gc.collect()
