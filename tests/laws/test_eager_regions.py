"""Eager regions: between recorded parts, on every call, as if nothing were recorded."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import sapwood as sw
from tests.support import unseen
from tests.support.frameworks import on_host


@pytest.mark.every_framework
def test_between_two_recorded_parts(agree):
    """An region runs once in every call, with its values; the rest is replayed."""
    counts = {}

    def program(w):
        seen = []

        @sw.eager
        def note(h):
            seen.append((float(h.sum()), h.tolist(), bool((h > 0).any())))

        def fn(x):
            h = x * 2
            note(h)
            return h + 1, x

        f = w.graph(fn)
        x = w.values(4)
        for i in range(6):
            x += i
            y = f(x)
            assert len(seen) == i + 1
            yield y, seen[-1], x
            del y
        counts[w.name] = len(seen)

    world = agree(program)
    assert set(counts.values()) == {6}
    assert (world.count("warmups"), world.count("recordings")) == (1, 1)
    assert world.count("replays") == 4


@pytest.mark.every_framework
@pytest.mark.minimal
def test_results_are_copied_in(agree):
    """What an eager region returns is an input of what follows, wherever it lies."""

    def program(w):
        @sw.eager
        def clip(h, limit=1.0):
            scale = min(1.0, limit / float(abs(on_host(h)).max()))
            return h * scale

        f = w.graph(lambda x, y: (clip(x * y) + x, clip(h=y * 2, limit=0.5)))
        for _ in range(6):
            yield f(w.values(4), w.values(4))
        x, y = w.values(4), w.values(4)
        for _ in range(4):
            yield f(x, y)

    assert agree(program).count("replays") >= 6


@pytest.mark.every_framework
def test_several_breaks(agree):
    """Three eager regions, one in a helper, one called twice, one with no arrays."""

    def program(w):
        seen = []

        @sw.eager
        def note(*values):
            seen.extend(float(v.sum()) for v in values)

        @sw.eager
        def mark():
            seen.append("mark")

        @sw.eager
        def halve(x):
            return x / 2 if float(x[0]) == float(x[0]) else x

        def helper(x):
            mark()
            return x - 1

        def fn(x):
            a = x * 2
            note(a)
            b = helper(a) * a
            c = halve(b)
            note(b, c, x)
            return a, b + c, c

        f = w.graph(fn)
        x = w.values(3)
        kept = []
        for i in range(12):
            x += 1
            kept.append(f(x))
            if i % 3 == 2:
                kept.clear()
            yield kept[-1:], list(seen)

    world = agree(program)
    assert world.count("replays") >= 3


def test_a_break_inside_a_nested_graphed_call(agree):
    """Inside a recording a graphed function is its plain one, regions included."""

    def program(w):
        seen = []

        @sw.eager
        def note(x):
            seen.append(float(x.sum()))

        def inner(x):
            h = x * 3
            note(h)
            return h - 1

        g = w.graph(inner)
        f = w.graph(lambda x: g(x + 1) * g(x))
        x = w.values(3)
        for _ in range(6):
            y, z = f(x), g(x)
            yield y, z, list(seen)

    agree(program)


@pytest.mark.every_framework
def test_several_shapes(agree):
    """What parts make lies on pages of their own, also where shapes share pages."""

    def program(w):
        @sw.eager
        def note(h):
            float(h.sum())

        def fn(x):
            h = x * 2
            note(h)
            y = h + 1
            note(y)
            return h, y, y * 3

        f = w.graph(fn)
        for n in (4, 5, 600, 6, 4):
            x = w.values(n)
            for _ in range(4):
                yield f(x)

    assert agree(program).count("replays") >= 8


def test_outputs_that_an_eager_region_keeps(agree):
    """What it makes by another recording of the function is not overwritten."""

    def program(w):
        kept, smaller = [], {}

        @sw.eager
        def double(h):
            return h * 2

        @sw.eager
        def keep(h):
            if len(h) in smaller:
                kept.append(f(smaller[len(h)]))

        def fn(x):
            y = double(x)
            keep(x)
            return x * 2, y + 1

        f = w.graph(fn)
        for n in (4, 5, 6):
            x = w.values(n)
            for _ in range(5):
                kept.clear()
                yield f(x), list(kept)
            smaller[n + 1] = x

    agree(program)


class Pair(NamedTuple):
    left: object
    right: object


@pytest.mark.every_framework
def test_nests_of_results(agree):
    """Tuples, lists, dicts and None of arrays; views; the same array twice."""

    def program(w):
        @sw.eager
        def many(x):
            y = x + 1
            return {"a": y, "b": [y[1:], None, (x * 2).T], "p": Pair(y, x * 0)}

        def fn(x):
            found = many(x * 2)
            y = found["a"]
            y *= 2
            return found, found["b"][0] + found["p"].left[1:], found["b"][2] - 1

        f = w.graph(fn)
        for _ in range(5 + 3 * w.framework.settling):
            yield f(w.values(3, 3))

    assert agree(program).count("replays") >= 2


@pytest.mark.every_framework
def test_the_array_passed_in_comes_back(agree):
    """A region that returns its argument, or a view of it, gives the same memory."""

    def program(w):
        one_object = w.framework.xp is np

        @sw.eager
        def clamp(x):
            if float(x.sum()) > 0:
                x *= 0.5
            return x

        @sw.eager
        def tail(x):
            return x[1:]

        def fn(x, y):
            h = x + y
            same = clamp(h)
            if one_object and same is not h:
                raise AssertionError
            same += 1
            end = tail(y)
            end *= 2
            view = tail(h)
            view -= y[1:]
            return h, same, y

        f = w.graph(fn)
        for i in range(6):
            x, y = w.values(4), w.values(4)
            yield f(x, y), x, y
            if i == 3:
                yield f(x, y), f(y, x)

    assert agree(program).count("replays") >= 3


@pytest.mark.every_framework
def test_writes_in_place(agree):
    """What an eager region writes is seen by what follows, and by the caller."""

    def program(w):
        weight = w.values(4)

        @sw.eager
        def write(h, x):
            h[...] = h * 2 if float(h[0]) > 0 else h - 1
            x += 1
            weight[1:] = 7

        def fn(x):
            h = x * weight
            view = h[1:]
            write(h, x)
            x *= 3
            return h + 1, view * 2, x * weight

        f = w.graph(fn)
        for _ in range(4):
            x = w.values(4)
            for _ in range(3):
                yield f(x), x, weight

    assert agree(program).count("replays") >= 6


def test_kept_arrays_never_change(agree):
    """An eager region may keep what it is passed: no later call overwrites it."""

    def program(w):
        kept = []

        @sw.eager
        def keep(h):
            kept.append(h[1:])

        def fn(x):
            h = x * 2
            keep(h)
            return h.sum() + x

        f = w.graph(fn)
        outs = []
        x = w.values(4)
        for i in range(24):
            x += 1
            outs.append(f(x))
            if i == 12:
                kept.clear()
                outs.clear()
            yield list(kept), list(outs)

    world = agree(program)
    assert world.count("recordings") <= 5


def test_kept_arrays_stay_one_with_results(agree):
    """Also where outputs are copied out: what is written later into one is in both."""

    def program(w):
        kept, slots = [], {"s": w.values(4), "t": w.values(4)}
        mark = sw.eager(lambda: None)

        @sw.eager
        def keep(v):
            kept.append(v)

        @sw.eager
        def peek():
            kept.append(slots["s"])

        def fn(x):
            h, v, u = x * 0.5, x - 1, x + 1
            mark()
            keep(h)
            slots["s"] = v
            slots["t"] = u
            peek()
            keep(u)
            v += h
            return h, v, u, slots["s"] * 2

        f, outs = w.graph(fn, max_variants=1), []
        for i in range(14):
            found = f(w.values(4))
            outs.append(found)
            for y in found:
                y[...] = y + 1.0
            yield found, kept[-3:], dict(slots)
            if i == 8:
                outs.clear()
                kept.clear()

    assert agree(program).count("passed_through") == 0


def test_eager_regions_may_write_python(agree):
    """Counters, lists and attributes: an eager region is ordinary Python."""

    def program(w):
        class Net:
            def __init__(self):
                self.n, self.log, self.weight = 0, [], w.values(3)

            @sw.eager
            def note(self, h, *, name):
                self.n += 1
                self.log.append((name, float(h.max())))

            def step(self, x):
                h = x * self.weight
                self.note(h, name="h")
                self.weight += h
                return h - 1

        if not w.plain:
            Net.step = w.rt.graph(Net.step)
        nets = Net(), Net()
        x = w.values(3)
        for _ in range(5):
            for net in nets:
                yield net.step(x), net.n, net.log, net.weight
        if w.replayed:
            assert nets[0].step.stats().replays == 3

    agree(program)


def test_instances_are_held_weakly(rig):
    """A live method does not keep its object alive, nor do recordings with it."""
    rt = rig.runtime

    class Net:
        @sw.eager
        def note(self, x, _):
            return x * float(x.sum())

        @rt.graph
        def step(self, x):
            return self.note(x * 2, self) + 1

    x = rt.array(np.ones(3))
    for _ in range(3):
        net = Net()
        for _ in range(4):
            assert np.asarray(net.step(x)).tolist() == [13] * 3
        assert net.step.stats().replays == 2
        gone = weakref.ref(net)
        del net
        gc.collect()
        assert gone() is None
    x += 1
    assert rt.memory_stats()["ranges"] == 0


class Mine(Exception):
    """An exception of the user."""


@pytest.mark.every_framework
@pytest.mark.parametrize("when", [0, 1, 2, 4])
def test_a_users_exception_leaves_unchanged(rt, bits, when):
    """The part before has run, the part behind has not, and the next call is right."""
    calls, x, y = [], rt.array(np.ones(3)), rt.array(np.ones(3))

    @sw.eager
    def check(h):
        calls.append(float(h.sum()))
        if len(calls) == when + 1:
            raise Mine("as thrown", 3)

    def fn(x):
        x += 1
        check(x * 2)
        x *= 2
        return x - 1

    f = rt.graph(fn)
    for call in range(8):
        if call == when:
            with pytest.raises(Mine, match="as thrown") as caught:
                f(x)
            assert caught.value.args == ("as thrown", 3)
            assert caught.value.__cause__ is None
            del caught
            gc.collect()
            y += 1
        else:
            out = f(x)
            y = (y + 1) * 2
            assert bits(out) == bits(y - 1)
        assert bits(x) == bits(y)
    assert f.stats().replays >= 3


OTHERS = {
    "shape": lambda x: x[1:],
    "dtype": lambda x: x.float() if hasattr(x, "float") else x.astype(np.float32),
    "nesting": lambda x: (x * 1,),
    "none": lambda _: None,
    "alias": lambda x: x,
    "float": lambda x: float(x.sum()),
    "text": lambda _: "no",
}


@pytest.mark.every_framework
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("when", [1, 2, 4])
def test_another_kind_of_result(rt, other, when, bits):
    """Anything but the recorded signature is refused, by name; the state is as left."""
    calls, x, y = [], rt.array(np.arange(3.0)), rt.array(np.arange(3.0))

    @sw.eager
    def measure(x):
        calls.append(len(x))
        return OTHERS[other](x) if len(calls) == when + 1 else x * 2

    def fn(x):
        x += 1
        x += measure(x)
        return x * 1

    f = rt.graph(fn, fullgraph=True)
    for call in range(7):
        y += 1
        if call == when:
            with pytest.raises(sw.CaptureError, match=r"measure.*first part has run"):
                f(x)
        else:
            y += y * 2
            assert bits(f(x)) == bits(y)
        gc.collect()
        assert bits(x) == bits(y)
    assert f.stats().replays >= 2


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize(
    "wrong",
    [np.ones(2), [1, 2], (1, [2.0]), {"n": 1}, object()],
    ids=["host array", "list", "list in a tuple", "dict", "object"],
)
def test_results_that_may_change_are_refused_on_call_one(rt, wrong):
    """Of these nobody knows what the function finds in them later."""

    @sw.eager
    def measure(_):
        return wrong

    def fn(x):
        measure(x + 1)
        return x * 2

    x = rt.array(np.ones(3))
    with pytest.raises(sw.CaptureError, match=r"measure.*first part has run") as caught:
        rt.graph(fn, fullgraph=True)(x)
    assert "test_eager_regions.py" in caught.value.where
    f = rt.graph(fn)
    for _ in range(4):
        assert np.asarray(f(x)).tolist() == [2] * 3
    assert f.stats().passed_through == 4


@pytest.mark.parametrize("value", [1.5, True, "text"])
def test_with_fullgraph_regions_return_no_values(rt, value):
    """Another one would need an eager call: it is refused at once."""
    measure = sw.eager(lambda _: value)
    f, x = rt.graph(lambda x: x * bool(measure(x)), fullgraph=True), rt.array([1.0])
    with pytest.raises(sw.CaptureError, match="the same in every replay"):
        f(x)


def test_python_writes_of_recorded_parts_are_errors(rt):
    """Only eager regions may write plain values: before and behind them nobody may."""
    log = []

    @sw.eager
    def note(x):
        log.append(float(x.sum()))

    counts = {"n": 0, "m": 0}

    def before(x):
        counts["n"] += 1
        note(x)
        return x + 1

    def behind(x):
        note(x)
        counts["m"] += 1
        return x + 1

    x = rt.array(np.ones(3))
    for fn, key in ((before, "n"), (behind, "m")):
        with pytest.raises(sw.CaptureError, match=key):
            rt.graph(fn, fullgraph=True)(x)


def test_slots_are_bound_before_an_eager_region(agree):
    """Arrays bound before a break are seen behind it, by live and recorded parts."""

    def program(w):
        class Cell:
            def __init__(self):
                self.h, self.c, self.seen = w.values(3), w.values(3), []

            @sw.eager
            def look(self):
                self.seen.append(float(self.h.sum()))
                self.c = self.h * 2

            def step(self, x):
                self.h = self.h * 0.5 + x
                self.look()
                self.h = self.h + self.c
                return self.h * 1

        cell, x, kept = Cell(), w.values(3), []
        step = w.graph(cell.step)
        for i in range(12):
            out = step(x)
            kept.append((cell.h, cell.c))
            if i == 6:
                kept.clear()
            yield out, cell.h, cell.c, list(cell.seen), list(kept)

    assert agree(program).count("replays") >= 4


@pytest.mark.parametrize("part", [1, 2])
def test_slots_of_a_part_that_fails(rt, bits, part, tmp_path):
    """They hold what they held before it: it has not run."""
    second, third = str(tmp_path / "second"), str(tmp_path / "third")

    class Cell:
        pass

    cell = Cell()
    cell.h = rt.array(np.zeros(3))

    @sw.eager
    def mark():
        Path(third if Path(second).exists() else second).touch()

    def fn(x):
        cell.h = x + 1
        if part == 1 and unseen.exists(second):
            float(cell.h[0])
        mark()
        cell.h = cell.h * 2
        if part == 2 and unseen.exists(third):
            float(cell.h[0])
        return cell.h - 1

    f, x = rt.graph(fn, fullgraph=True), rt.array(np.ones(3))
    assert bits(f(x), cell.h) == bits(np.full(3, 3.0), np.full(3, 4.0))
    with pytest.raises(sw.CaptureError, match="host"):
        f(x)
    gc.collect()
    assert bits(cell.h) == bits(np.full(3, 4.0 if part == 1 else 2.0))


def test_arrays_that_only_a_later_part_reads(agree):
    """An array behind the break that is replaced between calls is noticed before."""

    def program(w):
        @sw.eager
        def mark(x):
            float(x[0])

        net = {"w": w.values(3), "b": w.values(3), "idle": w.values(3)}

        def fn(x):
            h = x * net["b"]
            mark(h)
            return h + net["w"]

        f = w.graph(fn)
        x = w.values(3)
        for i in range(20):
            if i % 3 == 2:
                net["w"] = w.values(3)
            if i == 10:
                net["w"] = x
            if i > 12:
                net["idle"] = w.values(3)
            net["w"] += 1
            yield f(x), net["w"]

    assert agree(program).count("replays") >= 10


def test_values_that_an_eager_region_changes(rt, bits):
    """A plain value that recorded code reads behind it is guarded there, too."""
    state, low = {"scale": 2.0}, [False]

    @sw.eager
    def adapt(_):
        if low[0]:
            state["scale"] = 1.0

    def fn(x):
        x += 1
        adapt(x)
        return x * state["scale"]

    f = rt.graph(fn, fullgraph=True)
    x, y = rt.array(np.ones(3)), np.ones(3)
    for _ in range(4):
        y += 1
        assert bits(f(x)) == bits(y * 2)
    low[0] = True
    other = rt.array(np.ones(3))
    assert bits(f(other)) == bits(np.full(3, 2.0))  # it is recorded, for nothing
    state["scale"] = 2.0
    with pytest.raises(
        sw.CaptureError, match=r"adapt.*scale.*was 2.0, is 1.0.*first part has run"
    ):
        f(x)
    y += 1
    assert bits(x) == bits(y)
    for _ in range(4):
        y += 1
        assert bits(f(x)) == bits(y)


def test_values_that_only_the_next_call_reads(rt, bits):
    """Behind the last thing that is recorded, an eager region changes what it likes."""
    state, calls = {"scale": 2.0}, []

    @sw.eager
    def adapt(_):
        calls.append(1)
        if len(calls) % 6 == 0:
            state["scale"] *= 0.5

    def fn(x):
        h = x * state["scale"]
        adapt(h)
        return h, x

    f, x = rt.graph(fn), rt.array(np.ones(3))
    for _ in range(18):
        expected = bits(np.full(3, state["scale"]), np.ones(3))
        assert bits(*f(x)) == expected
    stats = f.stats()
    assert (stats.warmups, stats.recordings, stats.replays) == (3, 3, 12)


def test_a_changed_container_is_refused(rt):
    """An eager region may not change a list or dict that it is passed."""
    calls = []

    @sw.eager
    def fill(found, x):
        calls.append(1)
        if len(calls) > 3:
            found["more"] = x

    def fn(x):
        found = {"x": x * 2}
        fill(found, x)
        return found

    f, x = rt.graph(fn, fullgraph=True), rt.array(np.ones(3))
    for _ in range(3):
        f(x)
    with pytest.raises(sw.CaptureError, match=r"fill changed a list.*first part has"):
        f(x)


def test_an_exception_that_the_function_catches(rt, bits):
    """A replay has no `try`: it says so, where eager code would go on."""
    fail = [False]

    @sw.eager
    def check(_):
        if fail[0]:
            raise Mine

    def fn(x):
        x += 1
        try:
            check(x)
        except Mine:
            return x * 0
        return x * 2

    f, x, y = rt.graph(fn, fullgraph=True), rt.array(np.ones(3)), np.ones(3)
    for n, fail[0] in enumerate((False, True, False, False, False)):
        y += 1
        assert bits(f(x)) == bits(y * (0 if fail[0] else 2))
        assert f.stats().recordings == (n > 1)
    fail[0] = True
    with pytest.raises(sw.CaptureError, match=r"check raised Mine.*first part") as info:
        f(x)
    assert "test_eager_regions.py" in info.value.where
    assert isinstance(info.value.__cause__, Mine)
    del info
    fail[0], y = False, y + 2
    assert bits(f(x)) == bits(y * 2)


def test_objects_that_are_passed(rt):
    """An region gets the very objects; what the function makes itself is refused."""

    class Log:
        def __init__(self):
            self.seen = []

    log, found = Log(), []

    @sw.eager
    def note(where, h, *, when):
        found.append((where, float(h.sum()), when))

    f = rt.graph(lambda x: (note(log, x * 2, when="now"), x + 1)[1], fullgraph=True)
    x = rt.array(np.ones(3))
    for _ in range(4):
        f(x)
    assert found == [(log, 6.0, "now")] * 4
    for made in (lambda: Log(), lambda: np.ones(3), lambda: lambda: 3):
        g = rt.graph(
            lambda x, made=made: (note(made(), x, when=0), x + 1)[1], fullgraph=True
        )
        g(x)
        with pytest.raises(sw.CaptureError, match="makes itself"):
            g(x)


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_tolerant_functions_go_on(rt, bits):
    """Unless ``fullgraph=True`` a result that cannot be taken is used once."""
    calls = []

    @sw.eager
    def measure(x):
        calls.append(1)
        return float(x.sum()) if len(calls) == 2 else x * 2

    f = rt.graph(lambda x: measure(x + 1) + x)
    x = rt.array(np.arange(3.0))
    h = np.arange(3.0)
    assert bits(f(x)) == bits((h + 1) * 2 + h)
    assert bits(f(x)) == bits((h + 1).sum() + h)
    for _ in range(3):
        assert bits(f(x)) == bits((h + 1) * 2 + h)
    assert (f.stats().passed_through, f.stats().replays) == (1, 1)


def test_large_arrays_cross_regions(agree):
    """As small ones do, into the region and out of the call."""

    def program(w):
        @sw.eager
        def live(h):
            h[0] += 1
            return h * float(h[1])

        def fn(x):
            h = x * 2
            y = live(h)
            y += h
            return y, h

        f = w.graph(fn)
        kept = []
        for i in range(9):
            kept.append(f(w.values(300_000)))
            if i == 7:
                kept.clear()
            yield kept[-2:]

    world = agree(program)
    assert world.count("replays") >= 3
