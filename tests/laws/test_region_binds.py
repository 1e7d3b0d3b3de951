"""What eager regions bind, also now and then: all goes on as in an eager call.

Each program strays in some of its calls: a region does there what it did not do when
the call was recorded. In others it only binds what it always binds.
"""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace

import pytest

import sapwood as sw

pytestmark = pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")

CALLS, STRAY = 14, 9
"""In that call, and from the one behind the next on, regions do something else."""


def _nested_write(w, s):
    """A region calls a graphed function, which writes what the first part reads."""

    def add(x):
        s.w += x + 1

    add = w.graph(add)

    @sw.eager
    def live(x):
        s.rate += s.strays
        add(x[:1])

    def fn(x):
        h = x + s.w
        live(x)
        live(h)
        return h * s.rate

    return fn


def _passed_again(_, s):
    """State that each call binds anew is what a second region is passed."""

    @sw.eager
    def live(x):
        s.seen = x * 1

    def fn(x):
        h = x + 1
        live(h)
        live(s.w)
        s.w = s.w + 1
        return h

    return fn


def _binds_what_it_is_passed(_, s):
    """Then the function writes what it has by another name."""

    @sw.eager
    def live(h):
        if s.strays:
            s.w = h

    def fn(x):
        h, t = x + 1, x * 2
        live(h)
        s.w[1:] = t[:-1]
        return h, t

    return fn


def _binds_a_view_of_it(w, s):
    """A part of what it is passed, in a list and by an attribute."""
    s.kept = [w.values(3)]

    @sw.eager
    def live(h):
        if s.strays:
            s.kept[0] = h[1:]

    def fn(x):
        h = x + 1
        live(h)
        s.kept[0][...] = x[0] - s.kept[0]
        return h

    return fn


def _first_of_two_binds(w, s):
    """Another array in each call, which the part behind uses; the second strays."""

    @sw.eager
    def first(_):
        s.v = w.values(4)

    @sw.eager
    def second(t):
        if s.strays:
            s.w = t

    def fn(x):
        h, t = x + 1, x * 2
        first(h)
        h = h + s.v
        second(t)
        return h, s.w

    return fn


def _another_object(w, s):
    """In the place of one, with another array in it."""
    s.sub = SimpleNamespace(a=w.values(4), rate=2.0)

    @sw.eager
    def live(_):
        if s.strays:
            s.sub = SimpleNamespace(a=w.values(4), rate=3.0)
        s.sub.a = s.sub.a + 1

    def fn(x):
        h = (x + s.sub.a) * s.sub.rate
        live(h)
        s.sub.a = s.sub.a * 0.5
        return h + s.sub.a, s.sub.rate

    return fn


def _returns_state(_, s):
    """What the function binds anew comes back as a result."""

    @sw.eager
    def live(_):
        s.opt = None
        return s.w

    def fn(x):
        h = x + 1
        s.opt = h * 1
        h = h + live(x)
        s.w = h * 0.5
        return h, s.opt

    return fn


def _binding_anew(w, s):
    """Return a region that binds a new array in calls that stray."""

    @sw.eager
    def live(_):
        if s.strays:
            s.w = w.values(4)

    return live


def _kept_from_before(w, s):
    """The function goes on with the array that was there before."""
    live = _binding_anew(w, s)

    def fn(x):
        h, before = x + 1, s.w
        live(h)
        return {"h": h, "before": before}

    return fn


def _used_from_before(w, s):
    """The same, where that is another one in each call, and is computed with."""
    live = _binding_anew(w, s)

    def fn(x):
        h, before = x + 1, s.w
        live(h)
        s.v = before * 2
        return s.v + h

    def call(x):
        s.w = w.values(4)
        return graphed(x)

    graphed = w.graph(fn)
    return call


def _written_behind(w, s):
    """What one region binds is written in place, and the next one strays."""
    s.at = {"a": w.values(4)}

    @sw.eager
    def first(_):
        s.at["a"] = w.values(4)

    @sw.eager
    def second(t):
        return t * 2 if s.strays else None

    def fn(x):
        h, t = x + 1, x * 2
        first(t)
        s.at["a"] += h
        found = second(t)
        return h if found is None else h + found

    return fn


def _bound_by_both(w, s):
    """The function binds a slot, and a region another array; or a view of that."""

    @sw.eager
    def live(h):
        s.w = s.w.reshape(4)
        if s.strays:
            s.opt = w.values(4)
            return h * 3
        return None

    @sw.eager
    def behind(_):
        s.opt = None

    def fn(x):
        h = x + 1
        s.w = h * 1
        s.opt = h * 2
        found = live(x)
        s.w[1:] = h[:-1]
        behind(h)
        return h if found is None else h + found

    return fn


def _raises_early(w, s):
    """A region that has raised in a try since the recording was made."""
    s.pair = [w.values(4), w.values(4)]

    @sw.eager
    def sets(_):
        s.flag = True

    @sw.eager
    def raises(_):
        if s.strays or s.calls == 1:
            raise ArithmeticError

    def fn(x):
        h = x + 1
        sets(h)
        try:
            raises(h)
        except ArithmeticError:
            s.pair[0], s.pair[1] = s.pair[1], s.pair[0]
        return h + s.pair[0] if s.flag else h

    return fn


PROGRAMS = (
    *(_nested_write, _passed_again, _binds_what_it_is_passed, _binds_a_view_of_it),
    *(_first_of_two_binds, _another_object, _returns_state, _kept_from_before),
    *(_written_behind, _bound_by_both, _raises_early, _used_from_before),
)


def binding(make):
    """Return a program of a function that ``make`` gives, for values and state."""

    def program(w):
        s = SimpleNamespace(
            w=w.values(4), v=w.values(4), opt=None, seen=None, rate=1.0, flag=False
        )
        s.strays, s.calls = False, 0
        fn, x, kept = make(w, s), w.values(4), []
        f = fn if make is _used_from_before else w.graph(fn)
        for i in range(CALLS):
            s.calls, s.strays = i, i == STRAY or i > STRAY + 1
            kept.append(f(x if i % 3 else w.values(4)))
            yield kept[-2:], s.w, s.v, s.opt, s.rate, s.seen, getattr(s, "at", 0), x
        yield kept

    return program


@pytest.mark.every_framework
@pytest.mark.parametrize("make", PROGRAMS)
def test_it_gives_what_an_eager_call_gives(agree, make):
    """In its results, in what is kept of them, and in all that regions bind."""
    agree(binding(make))


@pytest.mark.parametrize(
    "make", [_passed_again, _first_of_two_binds, _returns_state, _written_behind]
)
def test_calls_that_do_not_stray_are_replayed(agree, make):
    """What a region always binds is no reason to skip a function."""
    world = agree(lambda w: islice(binding(make)(w), STRAY))
    f = world.functions[-1]
    assert f.stats().replays >= 3, f.explain()
