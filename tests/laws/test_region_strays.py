"""Calls that go another way behind an eager region than recorded go on eagerly.

What has run is put back, and regions that ran are not run again.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import sapwood as sw
from sapwood.tree.regions.rerun import Begun

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


def _two_that_write(w, regions):
    cut, state = sw.eager(regions.cut), {"w": w.values(4)}

    @sw.eager
    def write(h):
        state["w"] *= 0.5
        h += 1

    def fn(x, y):
        h = x + state["w"]
        write(h)
        k = h * state["w"]
        write(k)
        k += state["w"]
        return cut(k * y) + 1, h, k, state["w"] * 2

    return fn


def _results_that_are_written(_, regions):
    keep, write, cut = map(sw.eager, (regions.keep, regions.write, regions.cut))

    def fn(x, y):
        a = keep(x * y)
        a -= 1
        b = write(a)
        b -= 1
        return cut(a), a, b

    return fn


def _one_of_two(_, regions, state):
    keep = sw.eager(regions.keep)

    @sw.eager
    def change():
        if regions.stray:
            state.k = float(regions.calls)

    def fn(x, y):
        h = keep(x * state.k)
        change()
        return h * state.k + y

    return fn


def _slots_of_two(_, regions, state):
    @sw.eager
    def change(h):
        regions.calls += 1
        state.y *= 0.5
        h += 1
        if regions.stray:
            state.k = float(regions.calls)

    def fn(x, y):
        state.y = x * y
        h = x + y
        change(h)
        state.y += 1
        change(h)
        return state.y * state.k + h

    return fn


TWO = {
    "arrays": _two_that_write,
    "results": _results_that_are_written,
    "values": _writes(_one_of_two),
    "slots": _writes(_slots_of_two),
}


@pytest.mark.every_framework
@pytest.mark.parametrize("what", TWO)
def test_several_regions_that_write(agree, what):
    """The function finds behind each what that left, and no more."""
    world = agree(straying(TWO[what]))
    assert world.count("replays") >= 2


def _a_log(_, regions, state):
    state.log, state.seen = [], {}

    @sw.eager
    def note(_):
        regions.calls += 1
        if regions.stray:
            state.log.append(regions.calls)
            state.seen[str(regions.calls)] = 2.0

    def fn(x, y):
        before = len(state.log) + len(state.seen)
        h = x * y
        note(h)
        after = len(state.log) + sum(state.seen.values())
        return h * before + after, [*state.log]

    return fn


def _a_name(_, regions, state):
    @sw.eager
    def note(_):
        regions.calls += 1
        if regions.stray:
            state.extra = 2.0

    def fn(x, y):
        before = getattr(state, "extra", 1.0)
        h = x * y
        note(h)
        return h * before + getattr(state, "extra", 3.0)

    return fn


@pytest.mark.parametrize("change", [_a_log, _a_name])
def test_what_a_region_adds_is_not_there_before(agree, change):
    """Lists, dicts and attributes that the function reads on both sides of it."""
    world = agree(straying(_writes(change)))
    assert world.count("replays") >= 2


def _its_argument(w, regions):
    given = {}

    @sw.eager
    def note(_):
        regions.calls += 1
        if regions.stray:
            given["log"].append(2.0)
            given["table"]["z"] = 3.0

    def fn(x, log, table):
        before = len(log) + sum(table.values())
        h = x * 2
        note(h)
        return h * before + sum(log) + len(table), log, table

    f = w.graph(fn)

    def call(x, _):
        given["log"], given["table"] = [1.0], {"a": 1.0}
        return f(x, **given)

    return call


def _its_own_list(w, regions):
    @sw.eager
    def note(box, h):
        regions.calls += 1
        if regions.stray:
            box["rows"].append(h)
            box["more"] = box["rows"]

    def fn(x, y):
        h = x * y
        box = {"rows": [x, h]}
        note(box, h)
        return sum(box["rows"]) + len(box), box

    return w.graph(fn)


@pytest.mark.parametrize("make", [_its_argument, _its_own_list])
def test_a_region_fills_what_it_is_passed(agree, make):
    """The call's own lists and dicts, and those that the function has made."""

    def program(w):
        regions = Regions()
        f, x = make(w, regions), w.values(4)
        for i in range(CALLS):
            regions.stray = i >= STRAY
            yield f(x, w.values(4)), regions.calls

    assert agree(program).count("replays") >= 2


def test_a_value_that_a_region_before_the_last_sets(rt):
    """It is set again where the function comes to it: no region runs twice."""
    regions, state = Regions(), SimpleNamespace(k=1.0)
    cut = sw.eager(regions.cut)

    @sw.eager
    def enter():
        state.k = 2.0

    def fn(x):
        h = x * state.k
        enter()
        h = cut(h * state.k)
        return h * state.k

    f, x = rt.graph(fn), rt.array(np.ones(4))
    for _ in range(STRAY):
        state.k = 1.0
        assert np.asarray(f(x)).tolist() == [8] * 4
    assert f.stats().replays > 0
    regions.stray, state.k = True, 1.0
    assert np.asarray(f(x)).tolist() == [8] * 3
    assert (regions.calls, state.k) == (STRAY + 1, 2.0)
    state.k = 1.0
    assert np.asarray(f(x)).tolist() == [8] * 3


def test_a_region_takes_away_what_was_read_before(rt):
    """It is there again when the call is begun again, and then as the region left."""
    regions, state = Regions(), SimpleNamespace(seen={1.0, 2.0, 3.0})

    @sw.eager
    def forget():
        regions.calls += 1
        if regions.stray:
            state.seen.discard(3.0)

    def fn(x):
        h = x * max(state.seen)
        forget()
        return h + len(state.seen)

    f, x = rt.graph(fn), rt.array(np.ones(4))
    for _ in range(STRAY):
        assert np.asarray(f(x)).tolist() == [6] * 4
    regions.stray = True
    assert np.asarray(f(x)).tolist() == [5] * 4
    assert (regions.calls, state.seen) == (STRAY + 1, {1.0, 2.0})
    regions.stray = False
    assert np.asarray(f(x)).tolist() == [4] * 4


def _many(w, regions):
    weights = [w.values(4) for _ in range(20)]
    state = SimpleNamespace(rate=0.5)

    @sw.eager
    def schedule():
        regions.calls += 1
        if regions.stray:
            state.rate *= 0.5

    def fn(x, y):
        for i in range(20):
            weights[i] *= state.rate
        schedule()
        for i in range(20):
            weights[i] += x * state.rate
        return sum(weights[1:], y)

    return fn


@pytest.mark.every_framework
def test_many_arrays_are_put_back(agree):
    """A rate that changes between the writes of twenty weights."""
    world = agree(straying(_many))
    assert world.count("replays") >= 2


def test_more_than_can_be_put_back_is_not_replayed(rt, monkeypatch):
    """The function runs eagerly, and says why; not where nothing comes behind."""
    monkeypatch.setattr(Begun, "MOST", 16)
    rate = SimpleNamespace(k=0.5)
    region = sw.eager(lambda _: None)

    def between(x):
        x *= rate.k
        region(x)
        x += rate.k

    def behind(x):
        x *= rate.k
        region(x)
        return x

    def last(x):
        x *= rate.k
        return same(x)

    x, same = rt.array(np.full(4, 8.0)), sw.eager(lambda h: h)
    f, g, h = map(rt.graph, (between, behind, last))
    for _ in range(6):
        for each in f, g, h:
            each(x)
    assert f.stats().replays == 0
    assert g.stats().replays > 0
    assert h.stats().replays > 0
    ((reason, count),) = f.stats().skipped
    assert "more than can be put back" in reason
    assert count > 0


def test_a_result_that_is_dropped(rt):
    """What a last region gives is no matter to a function that has no use for it."""
    regions = Regions()

    @sw.eager
    def log(h):
        regions.calls += 1
        return float(h.sum()) if regions.stray else None

    def fn(x):
        h = x * 2
        log(h)
        return h

    f, x = rt.graph(fn), rt.array(np.ones(4))
    for i in range(CALLS):
        regions.stray = i >= STRAY
        assert np.asarray(f(x)).tolist() == [2] * 4
    assert f.stats().replays >= CALLS - 4


PHASES = {
    "one value": (("phase",), lambda state: state.phase),
    "two values": (("phase", "rate"), lambda state: state.phase * state.rate),
    "a table": (("table",), lambda state: state.table["phase"]),
}


@pytest.mark.every_framework
@pytest.mark.parametrize("what", PHASES)
@pytest.mark.parametrize("astray", [0, 1, 2])
def test_regions_that_set_what_the_function_reads(agree, what, astray):
    """Each sets a value, as in each call; whichever strays, all is as eager."""
    names, read = PHASES[what]

    def program(w):
        state = SimpleNamespace(phase=0, rate=2.0, table={"phase": 0}, stray=False)
        log, x = [], w.values(4)

        def moved(number, h):
            log.append((number, read(state)))
            if "phase" in names:
                state.phase = number + 1
            if "rate" in names:
                state.rate = 0.5 * (number + 1)
            if "table" in names:
                state.table["phase"] = number + 1
            return h[:-1] * 2 if state.stray and number == astray else h * 2

        regions = [sw.eager(lambda h, k=k: moved(k, h)) for k in range(3)]

        def fn(x, y):
            h = x * y + read(state)
            for region in regions:
                h = region(h) * (read(state) + 1)
            return h + read(state)

        f = w.graph(fn)
        for i in range(CALLS):
            state.phase, state.rate, state.table["phase"] = 0, 2.0, 0
            state.stray = i in (STRAY - 2, STRAY)
            found = f(x, w.values(4))
            yield found, log[-3:], len(log), state.phase, state.rate, dict(state.table)

    world = agree(program)
    assert world.count("replays") >= 2
