"""Functions that go by plain values: recorded for each, and gone on with by it.

A value is what a region returns, or what the function reads on the host itself. Each
way that calls go is a recording; a call turns to another where it meets its value.
"""

from __future__ import annotations

import random
import sys
import threading
import warnings

import numpy as np
import pytest

import sapwood as sw
from tests.support.frameworks import capturing

SKIP = "ignore::sapwood.GraphSkipWarning"
CALLS = 18


def _loop(x):
    """Go on until it is small: a chain of as many parts."""
    turns, error = 0, (x * x).sum()
    while error > 1:
        x = x * 0.5
        turns, error = turns + 1, (x * x).sum()
    return x, turns


def _exits(x):
    """Leave early, out of a loop, by a count that is read."""
    for i in range(int(x[0])):
        x = x + i
        if x[1] > 3:
            return x, "early"
    return x * 2, "late"


def _check(x):
    if x[0] > 1:
        raise KeyError(float(x[0]))


def _tries(x):
    """Raise by a value, and catch it."""
    try:
        _check(x)
        return x + 1, None
    except KeyError as error:
        return x - 1, error.args


READS = {
    "if": lambda x: x + 1 if x.sum() > 4 else x * 2,
    "float": lambda x: x * float(x[0]),
    "int": lambda x: x * int(x[0]),
    "complex": lambda x: x * complex(x[0]).real,
    "item": lambda x: (x * x[1].item(), x[1].item()),
    "tolist": lambda x: (x * len(x.tolist()), x.tolist()),
    "asarray": lambda x: x + float(np.asarray(x.T)[1]),
    "index": lambda x: x[: x.argmax()] * 2,
    "in": lambda x: x if 2.0 in x.tolist() else -x,
    "max": lambda x: max(x[0], x[1]) + x,
    "range": lambda x: sum((x for _ in range(x.argmax())), x),
    "nonzero": lambda x: x[np.nonzero(x - 1)[0]] * 3,
    "mask": lambda x: x[x > 1] * 2,
    "allclose": lambda x: x * np.allclose(x, x * 0 + 1),
    "both": lambda x: (x > 1).sum() > 1 and x.sum() < 9,
    "back": lambda x: x + np.asarray(np.asarray(x).cumsum(), like=x),
    "loop": _loop,
    "exits": _exits,
    "tries": _tries,
}


@pytest.mark.parametrize("read", READS)
def test_what_is_read_decides(agree, read):
    """Each call goes its own way; all three are replayed in the end."""
    fn, counts = READS[read], []

    def program(w):
        f, kept = w.graph(fn), []
        for i in range(CALLS):
            kept.append(f(w.array(np.array([3.0, 1.0, 2.0]) - i % 3)))
            yield kept[-3:]
            counts.append(w.count("replays") if w.replayed else 0)
        yield kept

    agree(program)
    # Where nobody tells ops, captures that bring host data are held against each other.
    assert max(counts) >= CALLS - (13 if read == "back" else 10)


VALUES = {
    "bool": lambda n: n % 3 == 0,
    "int": lambda n: n % 3,
    "float": lambda n: (0.5, -0.0, 0.0)[n % 3],
    "text": lambda n: "abc"[n % 3],
    "bytes": lambda n: b"abc"[n % 3 :],
    "none or not": lambda n: None if n % 3 else 1,
    "of numpy": lambda n: np.float32(n % 3),
    "a tuple": lambda n: (n % 3, ("a", n % 3 == 0)),
}


@pytest.mark.every_framework
@pytest.mark.parametrize("value", VALUES)
def test_what_a_region_returns_decides(agree, value):
    """It runs once in each call, and its values are told apart by type and bits."""
    ran = {}

    def program(w):
        calls = ran.setdefault(w.name, [])

        @sw.eager
        def live(_):
            calls.append(1)
            return VALUES[value](len(calls))

        def fn(x):
            got = live(x * 2)
            text = str(got)
            return x + len(text) if got else x - len(text), got

        f, kept = w.graph(fn), []
        for _ in range(CALLS):
            kept.append(f(w.values(4)))
            yield kept[-3:], len(calls)
        assert not w.replayed or w.count("replays") >= CALLS - 10
        yield kept

    agree(program)


@pytest.mark.every_framework
def test_values_beside_arrays_and_what_is_written(agree):
    """Each region finds what parts wrote before it; state and arguments, too."""

    def program(w):
        state, seen = {"w": w.values(4)}, []

        @sw.eager
        def live(h):
            seen.append(len(seen))
            h += 1
            return len(seen) % 2 == 0, h * 2

        def fn(x):
            x += state["w"]
            flag, y = live(x)
            state["w"] = state["w"] * 0.5 if flag else y + x
            again, z = live(state["w"])
            return (y, z, flag) if again else [x * 1, z]

        f, kept = w.graph(fn), []
        for _ in range(CALLS):
            x = w.values(4)
            kept.append(f(x))
            yield x, state["w"], kept[-3:], len(seen)

    agree(program)


def _counts(f):
    stats = f.stats()
    return stats.warmups, stats.recordings, stats.replays


@pytest.mark.filterwarnings("error")
def test_a_new_way_is_recorded_the_second_time(rt):
    """The first call that goes it is the warm-up, the next one makes the recording."""
    f, ran = rt.graph(_loop), []
    for size in (1, 1, 1, 4, 4, 4, 1, 4, 2, 2, 2, 4, 1, 2):
        x = rt.array(np.full(2, float(size)))
        before = _counts(f)
        f(x)
        steps = [a - b for a, b in zip(_counts(f), before, strict=True)]
        ran.append("wrp"[steps.index(1)])
        assert sum(steps) == 1
    assert "".join(ran) == "wrpwrpppwrpppp"


def test_a_value_that_is_always_new(rt):
    """After some calls the function runs eagerly; it says where, and what to do."""
    ran = []

    @sw.eager
    def live(_):
        ran.append(1)

    def fn(x):
        live(x)
        return x * float(x[0])

    f = rt.graph(fn)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for i in range(80):
            x = rt.array(np.array([i + 0.5, 2.0]))
            assert np.asarray(f(x)).tolist() == [(i + 0.5) ** 2, 2 * (i + 0.5)]
    (told,) = [each.message for each in told if each.category is sw.GraphSkipWarning]
    assert any(f"{read} returned" in str(told) for read in ("float(x)", "x.get()"))
    assert "bool" in told.remedy
    file, line = told.where.rsplit(":", 1)
    assert file == __file__
    assert int(line) == fn.__code__.co_firstlineno + 2
    assert f.stats().recordings <= 1
    assert len(ran) == 80


def test_what_is_read_has_all_its_bits(rt):
    """Those of a signalling NaN, too, which a Python number would quiet."""
    host = np.array([0x7FA00001], np.uint32).view(np.float32)
    f, x = rt.graph(lambda x: (x * 1, np.asarray(x).tobytes())), rt.array(host)
    for _ in range(4):
        assert f(x)[1] == host.tobytes()
    assert f.stats().replays == 2


@pytest.mark.filterwarnings(SKIP)
def test_what_is_not_read_so(rt):
    """More than 64 KiB, and text, which may be for somebody to read."""
    large = rt.array(np.zeros(20_000))
    for fn, x in (
        (lambda x: x * len(x.tolist()), large),
        (lambda x: x * len(str(x)), large[:4]),
    ):
        f = rt.graph(fn)
        for _ in range(4):
            f(x)
        assert f.stats().recordings == 0
        assert "on the host" in f.explain()
        with pytest.raises(sw.CaptureError, match="on the host"):
            rt.graph(fn, fullgraph=True)(x)


def test_a_region_that_returns_what_may_change(rt):
    """A list that somebody keeps would be another one behind the next region."""
    f = rt.graph(lambda x: x * len(sw.eager(lambda _: [1, 2])(x)))
    listed = sw.eager(lambda _: [1, 2])
    g = rt.graph(lambda x: x * len(listed(x)))
    x = rt.array(np.ones(2))
    for each in (f, g):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sw.GraphSkipWarning)
            for _ in range(3):
                assert np.asarray(each(x)).tolist() == [2, 2]
        assert each.stats().recordings == 0


@pytest.mark.filterwarnings(SKIP)
def test_regions_run_once_where_a_new_way_raises(rt):
    """The error is the function's own, and regions are not asked again."""
    ran = []

    @sw.eager
    def live(h):
        ran.append(float(h[0]))
        return len(ran) % 5

    def fn(x):
        kind = live(x + 1)
        if kind == 4:
            raise KeyError(live(x + 2))
        return x * kind

    f, x = rt.graph(fn), rt.array(np.zeros(2))
    for i in range(30):
        before = len(ran)
        kind = (before + 1) % 5
        if kind == 4:
            with pytest.raises(KeyError, match="0"):
                f(x)
            assert ran[before:] == [1, 2]
        else:
            assert np.asarray(f(x)).tolist() == [0, 0], i
            assert ran[before:] == [1]


@pytest.mark.filterwarnings(SKIP)
def test_threads_go_their_own_ways(rt):
    """Calls of one function, each on a thread of its own, with other values."""
    f, wrong = rt.graph(_loop), []

    def run(seed):
        chance = random.Random(seed)
        for _ in range(25):
            value = chance.choice([0.5, 1.0, 3.0])
            with rt.stream():
                y, turns = f(rt.array(np.full(2, value)))
                expected, count = _loop(np.full(2, value))
                if turns != count or np.asarray(y).tolist() != expected.tolist():
                    wrong.append((value, turns, np.asarray(y)))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    assert f.stats().replays > 30


@pytest.mark.every_framework
def test_a_longer_way_that_strays(agree):
    """What it wrote behind the region that it turned at is not done twice."""
    turns = (0, 0, 0, 1, 1, 1, 0, 1, 1.5, 0, 1.5, 1, 1.5, 0, 2, 2, 1, 0)

    def program(w):
        now, state = [0], {"w": w.values(4)}

        @sw.eager
        def live(h, again):
            h += 1
            return now[0] if again else bool(now[0])

        def fn(x, y):
            h = x * 2
            if not live(h, again=False):
                return h
            y *= 2
            before = y * 3
            state["w"] = state["w"] + y
            return y * live(y, again=True) + state["w"], before

        f, kept = w.graph(fn), []
        for now[0] in turns:
            x, y = w.values(4), w.values(4)
            kept.append(f(x, y))
            yield kept[-3:], x, y, state["w"]

    agree(program)


@pytest.mark.parametrize("turns", [2, 3, 4, 6, 8, 12])
@pytest.mark.parametrize("asks", [False, True])
def test_values_that_take_turns(rt, turns, asks):
    """However many there are, warm-ups and captures come to meet the same ones."""
    f = rt.graph(lambda x: x * float(x.max()) + (0 * x if asks and capturing() else 0))
    for i in range(turns * turns + 12 * turns):
        before, x = f.stats().replays, rt.array(np.full(2, float(i % turns)))
        assert np.asarray(f(x)).tolist() == [float(i % turns) ** 2] * 2
    assert f.stats().replays == before + 1


def _mixed(x, s):
    """Have arrays that are written, read, shown in part, and gone on with."""
    first, other = x * 2, x + 1
    if first.sum() > 9:
        first += other
        other *= s
    third = first * other
    if third.max() > 20:
        other -= first
        third = third[::2]
    elif other[0] > 2:
        return first, third
    return first[1:], other, [third, third], s


@pytest.mark.parametrize("kept", [False, True])
def test_what_parts_made_goes_along(agree, kept):
    """Behind a value a call goes on with what it has, whatever way it came."""
    counts = []

    def program(w):
        s, seen = w.values(4), []
        f = w.graph(lambda x: _mixed(x, s))
        for i in range(2 * CALLS):
            seen.append(f(w.array(np.array([4.0, 1.0, 2.0, 0.0]) + i % 4)))
            yield seen[-4:], s
            if not kept:
                seen.clear()
            counts.append(w.count("replays") if w.replayed else 0)
        yield seen

    agree(program)
    assert max(counts) >= CALLS


class _State:
    factor = 1.0


def test_a_way_whose_region_writes(agree):
    """A call that began like others, which only read, is put back as any is."""
    turns = (0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 2, 0, 1, 0, 1, 0, 1, 3, 0, 1, 0, 2, 3, 1)

    def program(w):
        state, kept = _State(), []

        @sw.eager
        def live(h, y):
            if now > 1:  # which it has never done before
                y += h
                state.factor = float(now)
            else:
                state.factor = 1.0

        def fn(x, y):
            h = x * 2 + y
            if float(x[0]) > 1:
                live(h, y)
                return (h + y) * state.factor
            return h - y

        f = w.graph(fn)
        for now in turns:
            x, y = w.array(np.array([float(now > 0) * 2, 1.0])), w.values(2)
            kept.append(f(x, y))
            yield kept[-3:], x, y

    agree(program)


@pytest.mark.every_framework
def test_slots_that_come_to_be_one(agree):
    """Ways that were recorded before have more places than those behind."""

    def program(w):
        slots = [w.values(4) for _ in range(3)]

        def fn(x):
            y = slots[0] + slots[1] + slots[2]
            slots[2] += 1
            if y.sum() < 1000:
                return y
            return slots[0] + x

        f, x = w.graph(fn), w.values(4)
        for i in range(CALLS):
            if i == CALLS // 2:
                slots[1] = slots[0]
            yield f(x), slots

    agree(program)


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("how", ["always new", "another shape"])
def test_calls_that_stray_behind_what_is_brought(agree, how):
    """What the function brings to the device is brought again, by the same call."""

    def program(w):
        calls = []

        @sw.eager
        def live(x):
            calls.append(x)
            return x[:1] if how == "another shape" and len(calls) == 9 else x * 2

        def fn(x):
            h = x + w.array(np.arange(4.0))
            if how == "always new":
                return h * float(h.sum())
            return live(h) + 1

        f = w.graph(fn)
        for i in range(CALLS if how == "another shape" else 60):
            yield f(w.array(np.full(4, float(i if i > 6 else 1))))

    agree(program)


@pytest.mark.filterwarnings(SKIP)
def test_a_region_where_an_exception_is_handled(agree):
    """It may ask for the exception, and for where that came from: nothing is replayed.

    Behind the block it is a region like others, and so is one in a call that is itself
    made where an exception is handled.
    """
    counts = []

    def program(w):
        seen = []
        live = sw.eager(lambda: seen.append(repr(sys.exception())))

        def inside(x):
            try:
                _check({0: 2.0})
            except KeyError:
                live()
            return x * 2

        def behind(x):
            live()
            return x * 2

        f, g = w.graph(inside), w.graph(behind)
        for _ in range(8):
            yield f(w.values(4)), seen
            try:
                _check({0: 3.0})
            except KeyError:
                yield g(w.values(4)), seen
            counts.append(w.count("replays") if w.replayed else 0)

    agree(program)
    assert max(counts) == 6
