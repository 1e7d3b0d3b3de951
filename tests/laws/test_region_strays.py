"""Calls that go another way behind an eager region than recorded go on eagerly.

What has run is put back, and regions that ran are not run again.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import sapwood as sw

pytestmark = pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")

CALLS, STRAY = 16, 11
"""From that call on regions return another kind of result."""


class Regions:
    """Counts its calls; one that strays returns a row less."""

    def __init__(self):
        self.calls, self.seen, self.stray = 0, [], False

    def keep(self, x):
        """Return as many rows, doubled."""
        self.calls += 1
        self.seen.append(x)
        return x * 2

    def cut(self, x):
        """Return a row less where it strays."""
        self.calls += 1
        return x[:-1] * 2 if self.stray else x * 2

    def view(self, x):
        """Return what is passed, or a part of it."""
        self.calls += 1
        return x[1:] if self.stray else x

    def fail(self, x):
        """Raise where it strays."""
        self.calls += 1
        if self.stray:
            raise ArithmeticError("astray")
        return x * 3

    def write(self, x):
        """Write to what is passed."""
        self.calls += 1
        x *= 2
        return x[:-1] + 0 if self.stray else x + 0


def straying(make):
    """Return a program of a function that ``make`` gives, for regions and values."""

    def program(w):
        regions = Regions()
        f, x = w.graph(make(w, regions)), w.values(4)
        kept = []
        for i in range(CALLS):
            regions.stray = i >= STRAY
            kept.append(f(x, w.values(4)))
            yield kept[-2:], x, regions.calls, regions.seen[-2:]

    return program


def _shorter(_, regions):
    cut = sw.eager(regions.cut)
    return lambda x, y: (cut(x * y) + 1, y)


def _write_before(_, regions):
    cut = sw.eager(regions.cut)

    def fn(x, y):
        x += y
        y *= 2
        h = cut(x * y)
        x -= 1
        return h * 3

    return fn


def _bind_before(w, regions):
    cut, state = sw.eager(regions.cut), {"h": w.values(4), "n": None}

    def fn(x, y):
        state["h"] = state["h"] * 0.5 + x
        state["n"] = state["h"] + y
        h = cut(state["n"])
        state["h"] = state["h"] + 1
        return h * 2, state["h"]

    return fn


def _second(_, regions):
    keep, cut = sw.eager(regions.keep), sw.eager(regions.cut)

    def fn(x, y):
        h = keep(x + y)
        h += 1
        return cut(h * y) * 2, h

    return fn


def _draw_before(w, regions):
    cut, generator = sw.eager(regions.cut), w.generator(7)

    def fn(x, y):
        h = generator.random(4) * x
        h = cut(h * y)
        return h * generator.random(1)

    return fn


def _caught(_, regions):
    fail = sw.eager(regions.fail)

    def fn(x, y):
        x += 1
        try:
            return fail(x * y)
        except ArithmeticError:
            x += 2
            return y + 1

    return fn


def _part_of_what_is_passed(_, regions):
    view = sw.eager(regions.view)

    def fn(x, y):
        h = x * y
        part = view(h)
        part += 1
        return h, part

    return fn


PROGRAMS = [
    *(_shorter, _write_before, _second, _caught, _part_of_what_is_passed),
]


@pytest.mark.every_framework
@pytest.mark.parametrize("make", PROGRAMS)
def test_it_gives_what_an_eager_call_gives(agree, make):
    """Results, arguments, slots, random numbers; and each region runs once a call."""
    world = agree(straying(make))
    assert world.count("replays") >= 2
    assert world.count("passed_through") >= CALLS - STRAY


@pytest.mark.parametrize("make", [_draw_before, _bind_before])
def test_what_each_call_goes_on_with(agree, make):
    """Generators and slots are where an eager call would have left them."""
    world = agree(straying(make))
    assert world.count("passed_through") >= CALLS - STRAY


def _writes(change):
    """Return what makes programs of a region that ``change`` makes and strays."""

    def make(w, regions):
        state = SimpleNamespace(k=2.0, w=w.values(4), y=None, calls=0)
        return change(w, regions, state)

    return make


def _what_is_passed(_, regions, __):
    write = sw.eager(regions.write)

    def fn(x, y):
        h = x * y
        return write(h) + 1, h

    return fn


def _what_it_reads(_, regions, state):
    @sw.eager
    def change():
        regions.calls += 1
        state.w *= 2
        if regions.stray:
            state.k = float(regions.calls)

    def fn(x, y):
        h = x * state.w + state.k
        change()
        return h * state.k, state.w + y

    return fn


def _what_was_bound(_, regions, state):
    @sw.eager
    def change():
        regions.calls += 1
        state.y *= 0.5
        if regions.stray:
            state.k = 3.0

    def fn(x, y):
        state.y = x * y
        change()
        return state.y * state.k + x

    return fn


def _what_it_binds(w, regions, state):
    @sw.eager
    def change():
        regions.calls += 1
        if regions.stray:
            state.w, state.k = w.values(4), 3.0

    def fn(x, y):
        h, local = x * state.w, y + state.w
        change()
        return h * state.k + local, state.w - x

    return fn


WRITES = [_what_is_passed, _what_it_reads, _what_was_bound, _what_it_binds]


@pytest.mark.every_framework
@pytest.mark.parametrize("change", WRITES)
def test_what_a_region_wrote_stays_written(agree, change):
    """Arrays that are passed, read or bound, and plain values; by one region."""
    world = agree(straying(_writes(change)))
    assert world.count("replays") >= 2


def test_two_regions_that_write_end_by_name(rt):
    """What each of them has left is not known."""
    regions, state = Regions(), SimpleNamespace(w=rt.array(np.ones(4)))

    @sw.eager
    def write():
        state.w *= 2

    cut = sw.eager(regions.cut)

    def fn(x):
        h = x + state.w
        write()
        return cut(h * state.w) + 1

    f, x = rt.graph(fn), rt.array(np.ones(4))
    for _ in range(STRAY):
        f(x)
    regions.stray = True
    with pytest.raises(sw.CaptureError, match=r"cut returned.*has run"):
        f(x)
    assert regions.calls == STRAY + 1
    assert np.asarray(state.w).tolist() == [2.0 ** (STRAY + 1)] * 4
    assert np.asarray(f(x)).shape == (3,)


def test_a_value_that_one_of_two_regions_changed_ends_by_name(rt):
    """Which of them it was, and so what the other found, is not known."""
    regions, state = Regions(), SimpleNamespace(k=2.0)
    keep = sw.eager(regions.keep)

    @sw.eager
    def change():
        if regions.stray:
            state.k = 3.0

    def fn(x):
        h = keep(x * state.k)
        change()
        return h * state.k

    f, x = rt.graph(fn), rt.array(np.ones(4))
    for _ in range(STRAY):
        assert np.asarray(f(x)).tolist() == [8] * 4
    regions.stray = True
    with pytest.raises(sw.CaptureError, match=r"state.k was 2.0, is 3.0.*has run"):
        f(x)
    assert regions.calls == STRAY + 1
    assert np.asarray(f(x)).tolist() == [18] * 4
