"""What eager regions change, and what the function has of its own behind them."""

from __future__ import annotations

import warnings
from contextlib import suppress

import numpy as np
import pytest

import sapwood as sw
from sapwood.memory.framework import Manner
from tests.support import unseen


def replays(f):
    """Return how many calls of a function were replayed."""
    return f.stats().replays


# What the rest of a function goes by.


def _by_flag(state, h, x):
    return h if state["flag"] else x


def _by_lookup(state, h, x):
    return {True: h, False: x}[state["flag"]]


@pytest.mark.parametrize("rest", [_by_flag, _by_lookup])
def test_a_rest_that_only_chooses(rt, rest):
    """What follows does nothing, but which array it gives hangs on a value."""
    state, wrong = {"flag": True}, [False]

    @sw.eager
    def adapt(_):
        state["flag"] = not wrong[0]

    def fn(x):
        h = x * 2
        adapt(h)
        return rest(state, h, x)

    f, x = rt.graph(fn, fullgraph=True), rt.array(np.arange(3.0))
    for _ in range(5):
        assert np.asarray(f(x)).tolist() == [0, 2, 4]
    assert replays(f) > 0
    wrong[0] = True
    with pytest.raises(sw.CaptureError, match="flag"):
        f(x)


def test_a_rest_that_only_binds(rt):
    """The same where that array is bound to a slot."""
    state, wrong = {"k": 0, "s": None}, [False]

    @sw.eager
    def adapt(_):
        state["k"] = int(wrong[0])

    def fn(x, y):
        h = x * 2
        adapt(h)
        state["s"] = y if state["k"] else x
        return h

    x, y = rt.array(np.arange(3.0)), rt.array(np.ones(3))
    f = rt.graph(fn, fullgraph=True)
    for _ in range(5):
        f(x, y)
        assert state["s"] is x
    wrong[0] = True
    with pytest.raises(sw.CaptureError, match="'k'"):
        f(x, y)


def test_a_slot_that_is_emptied_before_an_eager_region(rt):
    """As an optimizer takes gradients away, and others are bound behind."""
    state, seen = {"g": None, "w": rt.array(np.ones(3))}, []
    look = sw.eager(lambda h: seen.append((state["g"] is None, float(np.sum(h)))))

    def fn(x):
        state["g"] = None
        h = x * state["w"]
        look(h)
        state["g"] = h + 1
        look(h)
        state["w"] += state["g"]
        return h

    f, w = rt.graph(fn), np.ones(3)
    for i in range(7):
        h = (np.arange(3.0) + i) * w
        out = f(rt.array(np.arange(3.0) + i))
        assert np.asarray(out).tolist() == h.tolist()
        assert np.asarray(state["g"]).tolist() == (h + 1).tolist()
        w = w + h + 1
        assert np.asarray(state["w"]).tolist() == w.tolist()
        assert seen[-2:] == [(True, h.sum()), (False, h.sum())]
    assert replays(f) >= 3


def test_a_rest_that_only_calls_another_eager_region(rt):
    """Which eager region comes next hangs on a value."""
    state, log, wrong = {"flag": True}, [], [False]

    @sw.eager
    def adapt(_):
        state["flag"] = not wrong[0]

    @sw.eager
    def one(_):
        log.append("one")

    @sw.eager
    def other(_):
        log.append("other")

    def fn(x):
        h = x * 2
        adapt(h)
        if state["flag"]:
            one(h)
        else:
            other(h)
        return h

    f, x = rt.graph(fn, fullgraph=True), rt.array(np.arange(3.0))
    for _ in range(5):
        f(x)
    assert log == ["one"] * 5
    wrong[0] = True
    with pytest.raises(sw.CaptureError, match="flag"):
        f(x)
    assert log == ["one"] * 5


def test_a_rest_that_returns_what_there_is(agree):
    """What a region changes for the next call is no matter to the rest of this."""

    def program(w):
        steps, state = [], {"rate": 1.0}

        @sw.eager
        def schedule(_):
            steps.append(len(steps))
            if len(steps) % 8 == 0:
                state["rate"] *= 0.5

        def fn(x):
            h = x * state["rate"]
            schedule(h)
            return h, x

        f, x = w.graph(fn), w.values(3)
        for _ in range(24):
            yield f(x), state, len(steps)

    assert agree(program).count("replays") >= 4


def test_a_rest_that_returns_a_list_of_others(agree):
    """An eager region appends to it, now and then: what it holds is returned."""

    def program(w):
        state, calls = {"log": []}, []

        @sw.eager
        def note(_):
            calls.append(len(calls))
            if len(calls) % 5 == 0:
                state["log"].append(w.values(2))

        def fn(x):
            log = state["log"]
            h = x * 2
            note(h)
            return log, h

        f, x = w.graph(fn, fullgraph=True), w.values(3)
        for _ in range(16):
            calls_before = len(calls)
            try:
                shown = f(x)
            except sw.CaptureError:
                # The eager region ran, once.
                shown = state["log"], x * 2
            assert len(calls) == calls_before + 1
            yield shown, state

    agree(program)


# What is one memory when it is recorded, and two later.


def _returned(own, y, two):
    del two
    return y, own["t"]


def _passed(own, y, two):
    two(own["t"])
    return y


def _bound(own, y, two):
    del two
    own["s"] = own["t"]
    return y


@pytest.mark.parametrize("rest", [_returned, _passed, _bound])
def test_a_result_and_a_slot_that_part(rt, rest):
    """An eager region returns what a slot holds, until it does not."""
    own = {"s": rt.array(np.zeros(2)), "t": rt.array(np.ones(2))}
    hidden = {"h": own["t"]}

    @sw.eager
    def one(_):
        return hidden["h"]

    @sw.eager
    def two(h):
        h *= 2

    def fn(x):
        one(x)
        return rest(own, x + 1, two)

    f, x = rt.graph(fn, fullgraph=True), rt.array(np.zeros(2))
    for _ in range(5):
        f(x)
    before = np.asarray(own["t"]).tolist()
    hidden["h"] = rt.array(np.full(2, 7.0))
    with pytest.raises(sw.CaptureError, match="one"):
        f(x)
    assert np.asarray(own["t"]).tolist() == before
    assert np.asarray(hidden["h"]).tolist() == [7, 7]


def test_a_slot_that_an_eager_region_replaces(rt):
    """The function returns what it made, not what is in the slot by now."""
    slots, wrong = {"s": None}, [None]

    @sw.eager
    def note():
        if wrong[0] is not None:
            slots["s"] = wrong[0]

    def fn(x):
        h = x * 2
        slots["s"] = h
        note()
        return h

    f = rt.graph(fn, fullgraph=True)
    for i in range(6):
        assert np.asarray(f(rt.array(np.full(2, i)))).tolist() == [2 * i, 2 * i]
    wrong[0] = rt.array(np.full(2, 9.0))
    # It may be refused.
    with suppress(sw.CaptureError):
        assert np.asarray(f(rt.array(np.ones(2)))).tolist() == [2, 2]
    assert slots["s"] is wrong[0]


# More of an array than the function had.


def test_a_result_beyond_an_argument(agree):
    """An eager region returns what is beside the argument, in the same memory."""

    def program(w):
        kept = {}

        @sw.eager
        def rest(_):
            return kept["b"][4:8]

        f = w.graph(lambda x: (x * 2 + rest(x * 2),), fullgraph=True)
        for _ in range(8):
            kept["b"] = w.values(8)
            try:
                shown = f(kept["b"][:4])
            except sw.CaptureError:
                shown = (kept["b"][:4] * 2 + kept["b"][4:8],)
            yield shown

    agree(program)


def test_a_slot_bound_to_more_than_an_argument(rt):
    """The slot holds all of it, the function was passed its head."""
    slots, given = {"s": rt.array(np.zeros(8))}, {}

    @sw.eager
    def bind(_):
        slots["s"] = given["g"]

    def fn(x):
        h = x * 2
        bind(h)
        y = slots["s"] * 3
        slots["s"] += 1
        return h, y

    f = rt.graph(fn, fullgraph=True)
    for i in range(8):
        host = np.arange(8.0) + i
        given["g"] = rt.array(host)
        done = [host + 1]
        try:
            h, y = f(given["g"][:4])
        except sw.CaptureError:
            done.append(host)
        else:
            assert np.asarray(h).tolist() == (host[:4] * 2).tolist()
            assert np.asarray(y).tolist() == (host * 3).tolist()
        # If it was refused, then as a whole.
        assert slots["s"] is given["g"]
        assert np.asarray(slots["s"]).tolist() in [each.tolist() for each in done]


# What is the same object.


def _same_list(x, same):
    given = [x * 2]
    got = same(given)
    got.append(x + 1)
    return given, got is given


def _list_in_a_list(x, same):
    given = [x * 2]
    return same([given, x])[0] is given, x


def _same_array(x, same):
    h = x * 2
    return same(h) is h, h


@pytest.mark.parametrize("fn", [_same_list, _list_in_a_list, _same_array])
def test_what_comes_back(agree, fn):
    """An eager region returns the very object that it was passed, or that is in it."""

    def program(w):
        same = sw.eager(lambda h: h)
        f = w.graph(lambda x: fn(x, same))
        for _ in range(6):
            yield f(w.values(3))

    agree(program)


def test_one_result_twice(agree):
    """It is one array to the function."""

    def program(w):
        @sw.eager
        def two(h):
            r = h + 1
            return r, r

        def fn(x):
            a, b = two(x * 2)
            return a + 1 if a is b else x + 1

        f = w.graph(fn)
        for _ in range(6):
            yield f(w.values(3))

    agree(program)


def test_a_slot_still_holds_what_the_function_bound(agree):
    """Behind an eager region it is the function's own array, the very object."""

    def program(w):
        slots = {"s": w.values(3), "t": w.values(3)}
        note = sw.eager(lambda _: None)

        def fn(x):
            h = x * 2
            slots["s"] = slots["t"] = h
            note(x)
            same = slots["s"] is h and slots["t"] is slots["s"]
            return h + 1 if same else x + 1

        f = w.graph(fn)
        for _ in range(6):
            yield f(w.values(3)), slots

    agree(program)


# What the call itself was passed.


def _value(state, new):
    del new
    state["k"] = 3.0


def _array(state, new):
    state["x"] = new


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("write", [_value, _array])
def test_a_container_that_the_call_was_passed(rt, write, first):
    """An eager region may not change it where the function goes on."""
    current, new = {}, rt.array(np.full(4, 5.0))
    change = [first]
    expected = 3.0
    if first:
        expected = 7.0 if write is _array else 5.0

    @sw.eager
    def swap(_):
        if change[0]:
            write(current["state"], new)

    def fn(state):
        h = state["x"] * 2
        swap(h)
        return h + state["x"] * state["k"]

    f = rt.graph(fn, fullgraph=True)
    for _ in range(5):
        current["state"] = {"x": rt.array(np.ones(4)), "k": 1.0}
        with suppress(sw.CaptureError):
            assert np.asarray(f(current["state"])).tolist() == [expected] * 4
    assert first or replays(f) > 0
    change[0] = True
    current["state"] = {"x": rt.array(np.ones(4)), "k": 1.0}
    with pytest.raises(sw.CaptureError, match="swap"):
        f(current["state"])


def test_a_list_that_an_eager_region_fills_at_the_end(agree):
    """Where the function only returns what it has, it may."""

    def program(w):
        current = {}

        @sw.eager
        def note(h):
            current["log"].append(float(h.sum()))

        def fn(x, log):
            del log
            h = x * 2
            note(h)
            return h

        f = w.graph(fn)
        for _ in range(6):
            current["log"] = [1]
            yield f(w.values(3), current["log"]), current["log"]

    assert agree(program).count("replays") >= 3


# Where a call fails.


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("tolerant", [True, False])
def test_a_list_that_an_eager_region_fills(rt, tmp_path, tolerant):
    """What a region is passed, it may not change: no append is lost in silence."""
    flag = tmp_path / "flag"

    @sw.eager
    def note(log, h):
        if flag.exists():
            log.append(h)

    def fn(x):
        log = [x * 2]
        note(log, x)
        return log

    f = rt.graph(fn, fullgraph=not tolerant)
    for i in range(5):
        if i == 1:
            flag.touch()
        else:
            flag.unlink(missing_ok=True)
        # It is refused, or it works.
        with suppress(sw.CaptureError):
            assert len(f(rt.array(np.ones(2)))) == 1 + (i == 1)


class Thrown(Exception):
    """An exception of the user, which has arrays."""


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("which", ["argument", "made before", "made behind"])
def test_an_exception_with_an_array(rt, tmp_path, which, live):
    """The user gets it; its array tells its values, or that there are none."""
    flag, note = tmp_path / "flag", sw.eager(lambda _: None)

    def fn(x):
        h = x * 2
        if live:
            note(h)
        y = x + 1
        if unseen.exists(flag):
            arrays = {"argument": x, "made before": h, "made behind": y}
            raise Thrown(arrays[which])
        return h + y

    f, x = rt.graph(fn), rt.array(np.ones(4))
    f(x)
    flag.touch()
    with pytest.raises(Thrown) as caught:
        f(x)
    (array,) = caught.value.args
    expected = {"argument": 1, "made before": 2, "made behind": 2}[which]
    try:
        told = np.asarray(array).tolist()
    except sw.StaleOutput:
        told = None
    assert told in (None, [expected] * 4)
    del array, caught
    flag.unlink()
    assert np.asarray(f(x)).tolist() == [4] * 4


class _Strange(Manner):
    """A manner that no context sets, where it differs from the call's."""

    def __init__(self, mode):
        self.mode = mode

    def strange(self, outer):
        return None if outer.mode == self.mode else "the mode"


def test_an_eager_region_in_a_mode_that_no_replay_sets(rt, monkeypatch):
    """It is refused by the mode's name; where the whole call is in it, all is well."""
    framework, note = rt._device.framework, sw.eager(lambda _: None)

    def fn(x):
        h = x * 2
        note(h)
        return h + 1

    x = rt.array(np.ones(2))
    f, g = rt.graph(fn, fullgraph=True), rt.graph(fn, fullgraph=True)
    monkeypatch.setattr(framework, "manner", lambda: _Strange(mode=True), raising=False)
    for _ in range(4):
        assert np.asarray(g(x)).tolist() == [3, 3]
    assert replays(g) > 0
    # The function's own, as it were: nobody is watched before it begins.
    own = iter([False, True, True])
    monkeypatch.setattr(framework, "manner", lambda: _Strange(next(own, True)))
    with pytest.raises(sw.CaptureError, match="has changed the mode"):
        f(x)


STRAYS = {
    "guarded": (lambda state, _: state.update(k=3.0), "was 2.0, is 3.0"),
    "returns": (lambda _, x: x[1:], "returned"),
    "raises": (lambda _, __: 1 / 0, "ZeroDivisionError"),
}


def _straying(stray):
    """Return a function whose fifth call strays, what it reads, and what is said."""
    state, count, (strays, says) = {"k": 2.0}, [0], STRAYS[stray]

    @sw.eager
    def live(h):
        count[0] += 1
        return None if count[0] < 5 else strays(state, h)

    def fn(x):
        h = x * 2
        try:
            live(h)
        except ZeroDivisionError:
            return h
        return h * state["k"]

    return fn, state, count, says


@pytest.mark.parametrize("stray", STRAYS)
def test_a_call_that_strays_is_the_last_that_is_replayed(rt, stray):
    """It goes on eagerly, as all others do from then on; each region runs once."""
    fn, state, count, says = _straying(stray)
    f = rt.graph(fn)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for i in range(10):
            found = np.asarray(f(rt.array(np.full(3, float(i))))).tolist()
            failed = stray == "raises" and i > 3
            assert found == [i * 2 * (1 if failed else state["k"])] * 3
            assert count[0] == i + 1
    told = [str(each.message) for each in told]
    assert len(told) == (stray != "guarded")  # then the value is another one
    assert all(says in each and "has run" not in each for each in told)
    assert any(says in reason for reason, _ in f.stats().skipped)


@pytest.mark.parametrize("stray", STRAYS)
def test_a_call_that_strays_is_an_error_of_a_full_graph(rt, stray):
    """With ``fullgraph=True`` it ends by name."""
    fn, _, _, says = _straying(stray)
    f, x = rt.graph(fn, fullgraph=True), rt.array(np.ones(3))
    for _ in range(4):
        assert np.asarray(f(x)).tolist() == [4, 4, 4]
    with pytest.raises(sw.CaptureError, match=f"{says}.*has run"):
        f(x)
