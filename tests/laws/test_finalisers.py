"""A finaliser may run in the middle of any call, and may call graphed functions."""

from __future__ import annotations

import gc
from contextlib import contextmanager, suppress

import numpy as np
import pytest

import sapwood as sw
from tests.support.frameworks import on_host

STEPS = range(7, 60, 4)


@contextmanager
def _collecting_every(threshold):
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(threshold, 2, 2)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.collect()


class Cyclic:
    """Garbage that the collector alone finds; ``last`` is what it does then."""

    def __init__(self, last):
        self.me, self.last = self, last

    def __del__(self):
        # What comes inside a call of the allocator's is refused there.
        with suppress(sw.MisuseError):
            self.last()


@pytest.mark.every_framework("in C")
@pytest.mark.parametrize("kept", [0, 1, 4])
@pytest.mark.parametrize("threshold", STEPS)
def test_a_call_in_the_middle_of_another_changes_nothing_of_it(rt, threshold, kept):
    """Neither the result of the one nor that of the other is anybody else's."""
    f = rt.graph(lambda x: x * 2 + 1)
    x, z = rt.array(np.ones(3)), rt.array(np.full(3, 5.0))
    outer, inner = [], []

    def last():
        inner.append(f(z))
        del inner[: len(inner) - kept]

    with _collecting_every(threshold):
        for _ in range(60):
            Cyclic(last)
            outer.append(f(x))
            del outer[: len(outer) - 3]
            assert {tuple(on_host(y).tolist()) for y in outer} == {(3.0,) * 3}
            assert {tuple(on_host(y).tolist()) for y in [*inner]} <= {(11.0,) * 3}


def test_a_finaliser_replays_where_nothing_else_is_going_on(rt):
    """Outside of other calls its calls are replayed, like any."""
    f, z, seen = rt.graph(lambda x: x + 1), rt.array(np.zeros(3)), set()
    for _ in range(4):
        Cyclic(lambda: seen.add(tuple(np.asarray(f(z)).tolist())))
        gc.collect()
    assert seen == {(1.0,) * 3}
    assert f.stats().replays == 2


class Counting:
    """Something that notes its own end, and what it had then."""

    def __init__(self, log, had=None):
        self.log, self.had = log, had

    def __del__(self):
        self.log.append(1 if self.had is None else self.had * 2)


@pytest.mark.every_framework
@pytest.mark.parametrize("has", [False, True])
def test_what_objects_do_at_their_end_is_done(agree, has):
    """Those that the function makes end in it: code of its own, that nobody calls."""

    def program(w):
        log = []

        def fn(x):
            Counting(log, x + 1 if has else None)
            return x * 2

        f, x = w.graph(fn), w.values(4)
        for _ in range(8):
            yield f(x), len(log), log[-2:]

    agree(program)
