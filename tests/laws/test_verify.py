"""``verify=n``: every n-th replay is held against an eager run of the same call."""

from __future__ import annotations

import functools
import sys

import numpy as np
import pytest

import sapwood as sw
from sapwood.events import Evicted


class Box:
    def __init__(self, h):
        self.h = h


@pytest.fixture
def runs():
    """Count how often the code of a function runs, without its knowing."""
    counts = {}

    def count(frame, event, _):
        if event == "call" and frame.f_code in counts:
            counts[frame.f_code] += 1

    def watch(fn):
        counts[fn.__code__] = 0
        return lambda: counts[fn.__code__]

    old = sys.getprofile()
    sys.setprofile(count)
    yield watch
    sys.setprofile(old)


@pytest.fixture
def factor(hidden):
    """Return a factor that no guard can see, for a function made wrong on purpose."""
    hidden(1)
    return hidden


@pytest.mark.parametrize("n", [1, 2, 3])
def test_right_functions_pass_and_go_on(agree, n):
    """Everything that a call can write is written once, verified or not."""

    def program(w):
        box, rng, weight = Box(w.values(4)), w.generator(3), w.values(4)

        def fn(x, k):
            x += 1
            np.add(weight, x, out=weight)
            box.h = weight[::-1] * k
            return {"y": box.h + rng.random(4), "x": x[1:], "k": k}

        f, x = w.graph(fn, verify=n), w.values(4)
        for i in range(12):
            x = w.values(4) if i % 5 == 4 else x
            yield f(x, 2.0), x, weight, box.h, rng.random(2)

    world = agree(program)
    assert world.count("replays") >= 3


@pytest.mark.parametrize("keep", [True, False])
def test_carried_states_and_kept_outputs_pass(agree, keep):
    """``x = f(x)``, donated states, escapes and aliases are verified alike."""

    def program(w):
        f = w.graph(lambda x: (x * 0.5 + 1, x), max_variants=2, verify=2)
        g = w.graph(lambda s: np.add(s, 1, out=s), verify=2, donate=("s",))
        x, s, kept = w.values(4), w.values(4), []
        for _ in range(14):
            x, old = f(x)
            s = g(s)
            if keep:
                kept.append(old)
            yield x, old, s, kept

    agree(program)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_every_nth_replay_is_verified(rt, runs, n):
    """The function's Python runs for the n-th replay, and for no other."""

    def fn(x):
        return x * 2

    count = runs(fn)
    f, x = rt.graph(fn, verify=n), rt.array(np.arange(3.0))
    for _ in range(2):
        f(x)
    assert count() == 2
    for call in range(1, 13):
        f(x)
        assert count() == 2 + call // n
    assert f.stats().replays == 12


def test_none_is_verified_unasked(rt, runs):
    """By default no replay runs Python."""

    def fn(x):
        return x * 2

    count = runs(fn)
    f, x = rt.graph(fn), rt.array(np.arange(3.0))
    for _ in range(20):
        f(x)
    assert count() == 2


_WRITTEN = "(24 bytes that it wrote differ)"

WRONG = {
    "result": (lambda _, x, k: x * k, "(output 0 differs)"),
    "second result": (lambda _, x, k: (x, x * k), "(output 1 differs)"),
    "plain result": (lambda _, x, k: (x, k), "(output 1 differs)"),
    "two results": (lambda _, x, k: (x * k, x + k), "(output 0, output 1 differ)"),
    "argument": (lambda _, x, k: np.multiply(x, k, out=x).sum() * 0, _WRITTEN),
    "ambient": (lambda o, _, k: np.multiply(o.h, k, out=o.h).sum() * 0, _WRITTEN),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_function_is_reported(rt, factor, what):
    """Result or memory that differ are an `InternalError` that says which."""
    wrong, told = WRONG[what]
    box = Box(rt.array(np.arange(3.0) + 1))
    f = rt.graph(lambda x: wrong(box, x, factor()), verify=2, name="wrong_one")
    other, x = rt.graph(lambda x: x + 1), rt.array(np.arange(3.0) + 1)
    for _ in range(4):
        f(x)
    assert f.stats().replays == 2
    factor(3)
    f(x)
    with pytest.raises(sw.InternalError, match="wrong_one") as caught:
        f(x)
    assert told in str(caught.value)
    assert caught.value.snapshot
    assert np.asarray(x).tolist() in ([1, 2, 3], [3, 6, 9])
    for _ in range(4):
        assert np.asarray(other(x)).tolist() == (np.asarray(x) + 1).tolist()


@pytest.mark.parametrize("n", [1, 2])
def test_what_was_wrong_is_not_replayed_again(rt, factor, n):
    """Its recordings go; the calls to come warm up, record, and are right."""
    f, x = rt.graph(lambda x: x * factor(), verify=n), rt.array(np.arange(3.0))
    for _ in range(4):
        f(x)
    for value in (3, 5):
        factor(value)
        with pytest.raises(sw.InternalError, match="no guard sees"):
            for _ in range(n):
                f(x)
        for _ in range(2 * n + 3):
            assert np.asarray(f(x)).tolist() == [0, value, 2 * value]
    evicted = [e.reason for e in rt.events() if isinstance(e, Evicted)]
    assert len(evicted) == 2
    assert all("was not as an eager run" in reason for reason in evicted)


def test_a_slot_that_is_bound_to_something_else_is_reported(rt, factor):
    """What a replay binds is held against what the eager run bound."""
    box = Box(rt.array(np.zeros(3)))

    def fn(x):
        box.h = x * factor()

    f, x = rt.graph(fn, verify=1), rt.array(np.arange(3.0))
    for _ in range(4):
        f(x)
    factor(3)
    with pytest.raises(sw.InternalError, match=r"box\.h"):
        f(x)


def test_what_cannot_be_seen_is_not_reported_unasked(rt, factor):
    """The same function without ``verify`` replays what it recorded: documented."""
    f, x = rt.graph(lambda x: x * factor()), rt.array(np.arange(3.0))
    for _ in range(3):
        f(x)
    factor(3)
    assert np.asarray(f(x)).tolist() == [0, 1, 2]


def test_a_function_that_raises_when_verified(rt, factor):
    """An exception of the eager run is the caller's; the next call is right."""

    def fn(x):
        x += 1
        if factor() == 9:
            raise KeyError("mine")
        return x * 2

    f, x = rt.graph(fn, verify=1), rt.array(np.zeros(3))
    for i in range(4):
        assert np.asarray(f(x)).tolist() == [2.0 * (i + 1)] * 3
    before = np.asarray(x).tolist()
    factor(9)
    with pytest.raises(KeyError, match="mine"):
        f(x)
    eager = [before[0] + 1] * 3
    assert np.asarray(x).tolist() in (before, eager)
    factor(1)
    expected = (np.asarray(x) + 1) * 2
    assert np.asarray(f(x)).tolist() == expected.tolist()


def test_verifying_across_streams(agree):
    """Copies to compare with are made and undone in stream order."""

    def program(w):
        f, streams = (
            w.graph(lambda x: np.add(x, 1, out=x), verify=1),
            [
                w.stream(),
                w.stream(),
            ],
        )
        x = w.values(64)
        for i in range(10):
            with streams[i % 2]:
                f(x)
            with streams[(i + 1) % 2]:
                x *= 0.5
        yield (x,)

    agree(program)


@pytest.mark.parametrize("donated", ["x", ("x", "y")], ids=["one", "both"])
def test_what_is_donated_may_be_left_as_it_is(rt, donated):
    """Nobody may read it, whatever a replay leaves there; all else is compared."""

    @rt.graph(donate=donated, verify=1)
    def f(x, y, z):
        x += 1
        y += 2
        z += 3
        return x * y + z

    z = rt.array(np.zeros(4))
    for i in range(8):
        x, y = (rt.array(np.full(4, float(i + k))) for k in range(2))
        want = (i + 1.0) * (i + 3.0) + 3.0 * (i + 1)
        assert np.asarray(f(x, y, z)).tolist() == [want] * 4
    assert np.asarray(z).tolist() == [24.0] * 4
    assert f.stats().replays >= 4


def test_what_is_not_donated_is_still_compared(rt, factor):
    """Beside an argument that is."""

    @rt.graph(donate="x", verify=1)
    def f(x, z):
        z += factor()
        x += 1
        return x * 2

    z = rt.array(np.zeros(4))
    for _ in range(3):
        f(rt.array(np.ones(4)), z)
    factor(3)
    with pytest.raises(sw.InternalError, match=r"\(32 bytes that it wrote differ"):
        f(rt.array(np.ones(4)), z)


class Totals:
    """What is added to, floats among it."""

    def __init__(self):
        self.count, self.seen, self.log, self.table = 0, 0.0, [], {"n": 0.5}


def _adds(o, x):
    o.count += 1
    o.seen += 0.1
    o.seen -= 0.3
    o.table["n"] += 0.25
    o.log.append(1.5)
    return x * 2


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_verified_replay_adds_what_plain_calls_add(agree, n):
    """Once, in that order: sums of floats depend on it."""

    def program(w):
        o = Totals()
        f = w.graph(functools.partial(_adds, o), verify=n)
        for _ in range(12):
            yield f(w.values(3)), o.count, o.seen, o.table["n"], len(o.log)
        if w.name == "replayed":
            assert f.stats().replays >= 8

    agree(program)


def test_an_array_of_another_runtime_is_left_alone(rt):
    """It can be reached, and no recording uses it."""
    with sw.Runtime("emulated") as other:
        slots = type("Slots", (), {})()
        slots.w, slots.theirs = rt.array(np.ones(2)), other.array(np.ones(2)) + 1.0
        f = rt.graph(lambda x: x * slots.w * slots.theirs.size, verify=1)
        for n in range(6):
            assert np.asarray(f(rt.array([1.0, n]))).tolist() == [2.0, 2.0 * n]
        assert f.stats().replays >= 3
