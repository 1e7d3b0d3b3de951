"""What cannot be recorded runs eagerly: right, said once, and cheap."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import deque

import numpy as np
import pytest

import sapwood as sw
from sapwood.tree.guards import Surveyor

SKIP = "ignore::sapwood.GraphSkipWarning"


def _told(f, *args):
    """Return the result of a call, and the warnings that it gave."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = f(*args)
    return result, [each.message for each in told]


def test_one_warning_for_each_function_and_reason(rt):
    """At the call after the one that found out, with the line and a remedy."""

    def fn(x, flag):
        if flag:
            return x * float(str(x[1]))
        return x * len(str(x[2]))

    f, told = rt.graph(fn), []
    for size in (3, 4, 3, 3):
        for flag in (True, False):
            for _ in range(2):
                result, more = _told(f, rt.array(np.arange(float(size))), flag)
                told += more
                expected = fn(np.arange(float(size)), flag)
                assert np.asarray(result).tolist() == expected.tolist()
    assert [type(each) for each in told] == [sw.GraphSkipWarning] * 2
    for each in told:
        assert each.function == f.__qualname__
        assert each.where.startswith(__file__)
        assert each.remedy
        assert each.what in str(each)
    assert rt.graph(fn).stats().skipped == ()
    stats = f.stats()
    assert stats.passed_through == sum(count for _, count in stats.skipped) == 16
    assert all(each.what in f.explain() for each in told)
    skipped = rt.snapshot()["functions"][0]["skipped"]
    assert [(each["reason"], each["calls"]) for each in skipped] == [*stats.skipped]
    assert rt.stats().skipped == stats.skipped


@pytest.mark.parametrize("late", [False, True])
def test_a_warning_that_is_an_error_loses_nothing(rt, late):
    """It is raised before anything has run; the call can be made again."""
    seen = []

    def fn(x):
        x += 1
        if late:  # each call is another one, until the function is given up
            seen.append(1)
        return x * float(str(x[0]))

    f, x = rt.graph(fn), rt.array(np.zeros(2))
    raised = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", sw.GraphSkipWarning)
        for i in range(1, 9):
            before = np.asarray(x).tolist(), len(seen)
            try:
                result = f(x)
            except sw.GraphSkipWarning:
                raised += 1
                assert (np.asarray(x).tolist(), len(seen)) == before
                result = f(x)
            assert np.asarray(result).tolist() == [i * i, i * i]
    assert raised == 1
    assert len(seen) == 8 * late


def test_all_objects_of_a_class_are_warned_of_once(rt):
    """A method is one function."""

    class Model:
        @rt.graph
        def run(self, x):
            return x * float(str(x[0]))

    told = []
    for _ in range(3):
        model = Model()
        for _ in range(3):
            told += _told(model.run, rt.array(np.ones(2)))[1]
    assert len(told) == 1


@pytest.mark.filterwarnings(SKIP)
def test_a_function_that_is_given_up(rt):
    """After three kinds of calls that fail alike, none is tried any more."""
    f = rt.graph(lambda x: x * float(str(x[0])))
    for size in (1, 2, 3):
        for _ in range(2):
            f(rt.array(np.ones(size)))
    before = f.stats()
    for size in range(1, 20):
        assert np.asarray(f(rt.array(np.ones(size)))).tolist() == [1] * size
    assert f.stats().warmups == before.warmups
    assert f.stats().passed_through == before.passed_through + 19


@pytest.mark.filterwarnings(SKIP)
def test_what_may_be_recorded_later_is(rt):
    """A function that skips is looked at again: what it reads may have changed."""
    mode = {"host": True}
    f = rt.graph(lambda x: x * (float(str(x[0])) if mode["host"] else 2))
    x = rt.array(np.full(2, 3.0))
    for _ in range(5):
        assert np.asarray(f(x)).tolist() == [9, 9]
    mode["host"] = False
    for _ in range(40):
        assert np.asarray(f(x)).tolist() == [6, 6]
    assert f.stats().replays > 0
    mode["host"] = True
    assert np.asarray(f(x)).tolist() == [9, 9]


KINDS = {
    "by value": lambda rt, i: (rt.array(np.arange(3.0) + i), i % 2),
    "alike": lambda rt, i: (rt.array(np.arange(3.0) + i),),
    "in a dict": lambda rt, i: ({"x": rt.array(np.arange(3.0) + i), "k": i % 2},),
    "by dtype": lambda rt, i: (rt.array(np.arange(3, dtype="fi"[i % 2] + "4")),),
}


class Switched:
    """Reads on the host where it is told to, or by what it is passed."""

    def __init__(self):
        self.reads = False

    def __call__(self, x, reads=None):
        if isinstance(x, dict):
            x, reads = x["x"], x["k"]
        if reads is None:
            reads = self.reads or str(x.dtype) == "int32"
        return x * float(str(x[1])) if reads else x * 2


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("kind", KINDS)
def test_skips_and_replays_of_one_function(rt, kind):
    """Each call that can be replayed is, whatever was skipped, and counted, between."""
    plain, model = Switched(), Switched()
    f, skipped = rt.graph(model), 0
    for i in range(60):
        if kind == "alike":
            model.reads = plain.reads = i // 3 % 2 == 1
        before = f.stats()
        args = KINDS[kind](rt, i)
        expected = np.asarray(plain(*args))
        found, after = f(*args), f.stats()
        assert np.asarray(found).tobytes() == expected.tobytes()
        reads = model.reads if kind == "alike" else i % 2 == 1
        skipped += reads
        assert after.passed_through == skipped
        if i > 20:
            assert after.replays - before.replays == (not reads)
        del args, found, expected


@pytest.mark.parametrize("kind", KINDS)
def test_errors_and_replays_of_one_function(rt, kind):
    """With ``fullgraph=True`` each call that cannot be recorded raises, and always."""
    plain, model = Switched(), Switched()
    f = rt.graph(model, fullgraph=True)
    for i in range(40):
        if kind == "alike":
            model.reads = plain.reads = i // 3 % 2 == 1
        reads = model.reads if kind == "alike" else i % 2 == 1
        args = KINDS[kind](rt, i)
        if reads:
            with pytest.raises(sw.CaptureError, match="on the host"):
                f(*args)
        else:
            assert np.asarray(f(*args)).tobytes() == np.asarray(plain(*args)).tobytes()
    assert f.stats().passed_through == 0
    assert f.stats().replays >= 10


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("kind", ["by value", "alike"])
def test_skips_beside_replays_look_at_nothing(rt, kind, monkeypatch):
    """What the function reaches is not surveyed again for them."""
    model = Switched()
    f = rt.graph(model)

    def call(i):
        model.reads = kind == "alike" and i % 2 == 1
        f(*KINDS[kind](rt, i))

    for i in range(40):
        call(i)
    surveys = []
    monkeypatch.setattr(Surveyor, "survey", lambda *_: surveys.append(1))
    for i in range(41, 141, 2):
        call(i)
    assert f.stats().passed_through == 70
    assert len(surveys) <= 2


@pytest.mark.filterwarnings(SKIP)
def test_a_counter_beside_replays(rt, monkeypatch):
    """It differs at each call: one reason, and soon nothing is surveyed."""
    state, x = {"calls": 0}, rt.array(np.ones(2))

    def fn(x, counts):
        if counts:
            state["calls"] = state["calls"] + 1
        return x * 2

    f = rt.graph(fn)
    for i in range(30):
        f(x, i >= 5)
    assert f.stats().replays == 3
    assert f.stats().warmups == 1 + 8  # in so many, a value might come again
    surveys, survey = [], Surveyor.survey
    monkeypatch.setattr(
        Surveyor, "survey", lambda *args: surveys.append(1) or survey(*args)
    )
    for _ in range(50):
        f(x, True)
    assert state == {"calls": 75}
    ((reason, calls),) = f.stats().skipped
    assert reason.startswith("state['calls'] changed from 8 to 9: the function")
    assert calls == 75 - 8
    assert len(surveys) <= 6  # before and after, of three that are tried again


@pytest.mark.filterwarnings(SKIP)
def test_a_device_that_fails_for_a_time(rig):
    """A recording that failed for what may pass is tried again, at 4, 8, 16 calls."""
    rt = rig.runtime
    f, x = rt.graph(lambda x: x * 2), rt.array(np.ones(2))
    for i in range(1, 18):
        rig.faulty.fired, fails = None, i in {2, 4, 8}
        rig.faulty.plan = {rig.faulty.position} if fails else ()
        assert np.asarray(f(x)).tolist() == [2, 2]
        rig.faulty.plan = ()
        assert rig.faulty.fired == ("reserve" if fails else None)
        assert f.stats().recordings == (i >= 16)
    assert f.stats().replays == 1


class Unknown(dict):
    """Registered, but cannot be taken apart."""


def _odd(_):
    raise KeyError("not today")


sw.register_container(Unknown, _odd, _odd)

ARGUMENTS = {
    "host array": lambda rt: np.ones(2),  # noqa: ARG005
    "unknown": lambda rt: Unknown(x=rt.array(np.ones(2))),
    "deque": lambda rt: deque([rt.array(np.ones(2))]),
    "deep": lambda rt: _deep(rt.array(np.ones(2))),
}


def _deep(x):
    for _ in range(300):
        x = [x]
    return x


def _first(value):
    while isinstance(value, list | deque | dict):
        value = value["x"] if isinstance(value, dict) else value[0]
    return value + 1


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("kind", ARGUMENTS)
def test_arguments_of_every_kind(rt, kind):
    """Whatever eager code takes, a graphed function takes."""
    f = rt.graph(_first)
    for _ in range(9):
        assert np.asarray(f(ARGUMENTS[kind](rt))).tolist() == [2, 2]


def test_inside_of_others_captures(rig, monkeypatch):
    """A call is the plain function there, whatever was recorded."""
    rt, ran = rig.runtime, []
    f, x = rt.graph(lambda x: (ran.append(1), x * 2)[1]), rt.array(np.ones(2))
    g = rt.graph(lambda x: x * 2)
    for _ in range(4):
        g(x)
    before = f.stats(), g.stats()
    framework = rt._device.framework
    monkeypatch.setattr(type(framework), "included", lambda _: True)
    for _ in range(4):
        assert np.asarray(f(x)).tolist() == np.asarray(g(x)).tolist() == [2, 2]
    assert ran == [1] * 4
    assert (f.stats(), g.stats()) == before


def test_the_old_option_is_told_of_the_new_one(rt):
    """`on_unsupported=` is none any more."""
    with pytest.raises(sw.MisuseError, match="Did you mean fullgraph"):
        rt.graph(lambda x: x, on_unsupported="eager")


class Odd(BaseException):
    pass


ERRORS = (ValueError, KeyboardInterrupt, GeneratorExit, Odd)


class State:
    """Everything that a program changes, besides its arguments."""

    def __init__(self, make):
        self.count, self.seen, self.table = 0, [1], {"k": 0}
        self.held = make(np.zeros(3))


def _program(state, x, w, at, act):
    """Write into arrays, slots and Python, and act in front of op ``at``."""
    for i in range(5):
        if i == at:
            act()
        w += x * i
        if i == 3:
            state.held = w * 2
    return w + state.held


def _shown(state, x, w):
    held = np.asarray(state.held).tolist()
    own = state.count, list(state.seen), dict(state.table), held
    return own, np.asarray(x).tolist(), np.asarray(w).tolist()


def _run(call, make, when, hidden, error, at):
    """Return what each of five calls gave, and all there was after it."""
    state, x, w, found = State(make), make(np.arange(3.0)), make(np.ones(3)), []

    def act():
        if hidden():
            raise error("mine")

    f = call(lambda x, w: _program(state, x, w, at, act))
    for i in range(5):
        hidden(int(i == when))
        try:
            result = np.asarray(f(x, w)).tolist()
        except error as raised:
            result = (type(raised), raised.args)
        found.append((result, _shown(state, x, w)))
    return found


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("at", range(5))
def test_exceptions_end_a_call_as_eager_ones(rt, hidden, error, at):
    """In a warm-up, and in a capture, at every op: once, with all as eager left it.

    A replay runs no Python: what it does not see cannot raise in it.
    """
    for when in range(3):
        expected = _run(lambda fn: fn, np.array, when, hidden, error, at)
        found = _run(rt.graph, rt.array, when, hidden, error, at)
        assert found == expected, when


def _write_list(state):
    state.seen.append(len(state.seen))


def _write_dict(state):
    state.table["k"] += 1
    state.table["new"] = state.count


@pytest.mark.filterwarnings(SKIP)
def test_warm_leaves_python_as_it_was(rt):
    """What the warm-up writes besides arrays is put back, too."""
    state = State(np.array)

    def fn(x):
        _write_list(state)
        _write_dict(state)
        state.count += 1
        return x + 1

    rt.graph(fn).warm(rt.array(np.ones(2)))
    assert (state.count, state.seen, state.table) == (0, [1], {"k": 0})


@pytest.mark.parametrize("replays", [False, True])
def test_calls_that_never_come_again_are_told_once(rt, replays):
    """A step number as argument: each call is warmed up; not where others replay."""
    f, x = rt.graph(lambda x, step: x * step), rt.array(np.ones(2))
    told = []
    for i in range(280):
        if replays:
            told += _told(f, x, 7.0)[1]
        result, more = _told(f, x, float(i) + 0.5)
        assert np.asarray(result).tolist() == [i + 0.5] * 2
        told += more
    assert len(told) == (not replays)
    assert all(
        "step differs" in str(each) and "as an array" in str(each) for each in told
    )


def _counting(state):
    """Return what gives a sum in each n-th call, of a list that grows then."""

    def fn(x):
        state["calls"] += 1
        if state["calls"] % state["every"] == 0:
            state["seen"].append(x.sum())
            return state["seen"][-1]
        return x * 2

    return fn


def test_recordings_that_are_never_replayed_are_given_up(rt):
    """Ever fewer are made, by the name of what changes; replays end that."""
    mine, others = ({"calls": 0, "every": 3, "seen": []} for _ in range(2))
    f, plain = rt.graph(_counting(mine)), _counting(others)
    x, told, made = rt.array(np.arange(3.0)), [], []
    for _ in range(4):
        for _ in range(100):
            result, more = _told(f, x)
            told += more
            assert np.array_equal(np.asarray(result), plain(np.arange(3.0)))
        made.append(f.stats().recordings)
    assert made[0] <= 20
    assert made[3] - made[1] <= 4
    assert [each.what for each in told if "none is ever replayed" in each.what]
    assert len(told) == 1
    assert "len(" in told[0].what
    assert f.stats().skipped[0][1] == f.stats().passed_through
    mine["every"] = 1000
    for _ in range(1200):
        f(x)
    assert f.stats().replays > 100


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("raises", [False, True])
def test_calls_that_never_come_again_are_watched_ever_more_rarely(rt, raises):
    """One warning, and right results; one that does come again ends that."""
    state = {"rate": 0.0, "seen": 0}

    def plain(x):
        state["seen"] += raises
        y = x * state["rate"]
        if raises and state["rate"] < 1500:
            raise ValueError(state["rate"])
        return y

    f, x, told = rt.graph(plain), rt.array(np.arange(3.0)), []
    for i in range(1500):
        state["rate"] = float(i)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", sw.GraphSkipWarning)
            if raises:
                with pytest.raises(ValueError, match=str(float(i))):
                    f(x)
            else:
                assert np.array_equal(np.asarray(f(x)), np.arange(3.0) * i)
        told += [each.message for each in warned]
    assert len(told) == 1
    assert "of recent calls, 256 more were" in told[0].what
    assert f.stats().warmups <= 256 + 3 * 8
    assert f.stats().passed_through >= 1500 - 256 - 4 * 8
    assert state["seen"] == 1500 * raises
    state["rate"] = 1500.0
    for _ in range(2100):
        assert np.array_equal(np.asarray(f(x)), np.arange(3.0) * 1500)
    if not raises:
        assert f.stats().replays > 100


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("often", [1, 3, 20])
def test_ops_in_another_order_are_tried_again(rt, hidden, often):
    """Some orders are nobody's: one that is never the same ends with a reason."""

    def fn(x):
        if hidden():
            up, down = x + 1, x * 2
        else:
            down, up = x * 2, x + 1
        return down - up

    f = rt.graph(fn)
    for i in range(30):
        hidden(i % 2 if i < often + 1 else 0)
        x = rt.array(np.full(3, float(i)))
        assert np.asarray(f(x)).tolist() == [i - 1.0] * 3
    (skipped,) = f.stats().skipped
    assert "differs between two calls" in skipped[0]
    if often < 20:
        assert skipped[1] <= often
        assert f.stats().replays > 20
    else:
        assert f.stats().replays == 0


@pytest.mark.every_framework
@pytest.mark.filterwarnings(SKIP)
def test_another_kind_of_call_is_recorded_after_many_skips(agree):
    """Calls that are not looked at are few, and right."""

    def run(w):
        def fn(x):
            return x * float(x.sum()) if x.shape == (4,) else x * 2

        f = w.graph(fn)
        for size in (4,) * 100 + (5,) * 20 + (4,) * 5:
            yield f(w.values(size))

    world = agree(run)
    assert world.count("replays") >= 8
    assert world.count("passed_through") >= 50


MANY = 300


def _reading(rt, **options):
    """Return a graphed function that reads on the host, and a list of its calls."""
    ran = []

    def fn(x, *, more=0):
        ran.append(more)
        if more == -1:
            raise KeyError(more)
        return x * float(str(x[1])) + more

    return rt.graph(fn, **options), ran


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("given_up", [False, True])
def test_each_of_many_skipped_calls_is_counted(rt, given_up):
    """Each runs once, gives or raises what the plain one does, and is counted."""
    f, ran = _reading(rt)
    sizes = range(2, 6 if given_up else 3)
    for number in range(MANY):
        x = rt.array(np.arange(float(2 + number % len(sizes))))
        if number in (100, 101, 110):  # between two looks
            with pytest.raises(KeyError):
                f(x, more=-1)
        else:
            expected = [value + 1 for value in range(x.shape[0])]
            assert np.asarray(f(x, more=1)).tolist() == expected
        if number % 11 == 0:
            assert f.stats().passed_through + f.stats().warmups == number + 1
        assert len(ran) == number + 1
    with sw.disabled():
        assert np.asarray(f(x)).tolist() == [*range(x.shape[0])]
    assert rt.stats().passed_through + rt.stats().warmups == MANY
    assert sum(count for _, count in f.stats().skipped) == f.stats().passed_through


@pytest.mark.filterwarnings(SKIP)
def test_many_skipped_calls_of_threads(rt):
    """None is counted twice, or not at all."""
    f, ran = _reading(rt)
    x = rt.array(np.arange(3.0))

    def calls():
        for _ in range(MANY):
            f(x)
            f.stats()

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(ran) == 4 * MANY
    assert f.stats().passed_through + f.stats().warmups == 4 * MANY


@pytest.mark.filterwarnings(SKIP)
def test_steps_end_what_skipped_calls_made(rt):
    """Also of the first step, after many calls that nobody looked at."""
    f, _ = _reading(rt)
    x = rt.array(np.arange(3.0))
    for _ in range(MANY):
        f(x)
    for _ in range(2 * MANY):
        with rt.step():
            y = f(x)
            assert np.asarray(y).tolist() == [0, 1, 2]
    with rt.step(), pytest.raises(sw.StaleOutput):
        np.asarray(y)


@pytest.mark.filterwarnings(SKIP)
def test_many_skipped_calls_and_what_ends(rt):
    """A closed runtime, or a method whose object is gone, is told of at once."""

    class Model:
        @rt.graph
        def read(self, x):
            return x * float(str(x[1]))

    model, x = Model(), rt.array(np.arange(3.0))
    unbound = model.read.__getattribute__("_method")
    for _ in range(MANY):
        model.read(x)
    gone = weakref.ref(model)
    del model
    assert gone() is None
    with pytest.raises(sw.MisuseError, match=r"object that .* is a method of is gone"):
        unbound(x)
    f, _ = _reading(rt)
    for _ in range(MANY):
        f(x)
    rt.close()
    with pytest.raises(sw.MisuseError, match="closed"):
        f(x)


def _watched(f, calls):
    """Return how many of some calls, each with its own arguments, were watched."""
    before = f.stats().warmups
    for args in calls:
        f(*args)
    return f.stats().warmups - before


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("alike", [20, 5])
def test_values_that_are_new_but_now_and_then_are_not_watched_for_ever(rt, alike):
    """A rate that changes in each step, and evaluations in between."""
    x = rt.array(np.arange(3.0))
    f = rt.graph(lambda x, rate: x * rate)
    calls = [(x, 0.5 if alike and not n % alike else n + 1.0) for n in range(1, 1201)]
    for args in calls[:600]:
        assert np.asarray(f(*args)).tolist() == [k * args[1] for k in range(3)]
    assert _watched(f, calls[600:]) < 100


@pytest.mark.filterwarnings(SKIP)
def test_values_that_mostly_come_again_are_recorded_for_ever(rt):
    """However many there were that did not."""
    x = rt.array(np.arange(3.0))
    f = rt.graph(lambda x, rate: x * rate)
    for n in range(1, 900):
        f(x, 0.5 if n % 3 else float(n))
    before = f.stats().replays
    for _ in range(10):
        f(x, 0.5)
    assert f.stats().replays == before + 10


def test_methods_of_objects_that_go_at_once(rt):
    """They are plain by and by, which is said; those of one that stays are recorded."""

    class Vector:
        def __init__(self, x):
            self.x = x

        @rt.graph
        def scaled(self, by):
            return self.x * by

    x = rt.array(np.arange(3.0))

    def objects(count):
        for _ in range(count):
            yield Vector(x)

    with pytest.warns(sw.GraphSkipWarning, match="gone, one after another") as told:
        plain = [
            not hasattr(each.scaled, "stats")
            for each in objects(200)
            if each.scaled(2.0) is not None
        ]
    assert len(told) == 1
    assert sum(plain) > 100
    replayed = []
    for stays in objects(150):
        for _ in range(6):
            assert np.asarray(stays.scaled(2.0)).tolist() == [0.0, 2.0, 4.0]
        replayed.append(hasattr(stays.scaled, "stats") and stays.scaled.stats().replays)
    assert all(replayed[-20:])
