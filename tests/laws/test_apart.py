"""Functions that ask whether they are captured, and do other work then: what counts."""

from __future__ import annotations

import functools
import time

import numpy as np
import pytest

import sapwood as sw
from tests.support.frameworks import capturing, on_host

SKIP = "ignore::sapwood.GraphSkipWarning"


@pytest.fixture
def asks(framework):
    """Return what code asks: a framework, whether a capture is on."""
    return framework.capturing


def checked(x, asks=capturing):
    """Look at values on the host, unless that is captured."""
    if not asks() and not np.isfinite(float(x.sum())):
        raise ValueError("it is not finite")
    return x * 2


def otherwise(x):
    """Add in another order where that is captured: the bits are others."""
    return (x + 0.1) + 0.2 if capturing() else x + (0.1 + 0.2)


def captured(x):
    """Return what `otherwise` does in captures."""
    return (x + 0.1) + 0.2


def some(rt):
    """Return an array, which no fixture keeps."""
    return rt.array(np.arange(64.0) / 7)


def test_what_a_capture_leaves_out_is_no_reason(rt):
    """A host read behind the question, which no capture meets."""
    x = some(rt)
    f, expected = rt.graph(checked), np.asarray(x) * 2
    for _ in range(6):
        assert np.asarray(f(x)).tobytes() == expected.tobytes()
    stats = f.stats()
    assert (stats.warmups, stats.recordings, stats.replays) == (2, 1, 3)


@pytest.mark.every_framework
def test_the_plain_check_still_raises(rt, asks):
    """What the first call finds on the host is the function's own error."""
    x = some(rt)
    f = rt.graph(lambda x: checked(x, asks))
    with pytest.raises(ValueError, match="not finite"):
        f(x * np.inf)


@pytest.mark.every_framework
def test_a_read_before_the_question_is_a_reason(rt, asks):
    """A capture would meet it, whatever the answer is: none is tried."""
    x = some(rt)
    seen = []

    def f(x):
        total = float(x.sum())
        seen.append(asks())
        return x * total

    g = rt.graph(f, fullgraph=True)
    for _ in range(3):
        with pytest.raises(sw.CaptureError, match="host"):
            g(x)
    assert not any(seen)


@pytest.mark.every_framework
@pytest.mark.filterwarnings(SKIP)
def test_a_read_that_a_capture_meets_is_a_reason(rt, asks):
    """Whoever asks, and reads all the same, is refused by the capture."""
    x = some(rt)

    def f(x):
        return x * (2 if asks() else 1) * (len(f"{x[0]:.2f}") > 0)

    g = rt.graph(f)
    for _ in range(5):
        expected = on_host(x)
        assert np.allclose(on_host(g(x)), expected)
        x += 1
    assert g.stats().replays == 0
    assert "on the host" in g.explain()


def test_other_work_in_captures_is_what_counts(rt):
    """From the first capture on, results are of that work, and explained once."""
    x = some(rt)
    f = rt.graph(otherwise)
    plain, apart = np.asarray(otherwise(x)), np.asarray(captured(x))
    assert plain.tobytes() != apart.tobytes()
    found = [np.asarray(f(x)).tobytes() for _ in range(6)]
    assert found == [plain.tobytes()] + 5 * [apart.tobytes()]
    assert f.stats().replays == 3
    assert f.explain().count("asks whether a capture is on") == 1
    g = rt.graph(captured)
    for _ in range(3):
        g(x)
    assert "asks whether" not in g.explain()


def test_it_is_verified_against_that_work(rt):
    """An eager run is answered as in a capture; a wrong replay is still found."""
    x = some(rt)
    f, apart = rt.graph(otherwise, verify=1), np.asarray(captured(x))
    f(x)
    for _ in range(5):
        assert np.asarray(f(x)).tobytes() == apart.tobytes()
    assert f.stats().replays == 3


@pytest.mark.minimal
def test_two_captures_must_agree(rt):
    """What depends on more than the answer is refused, as where nobody asks."""
    x = some(rt)

    def f(x):
        return x * (time.perf_counter_ns() if capturing() else 1)

    g = rt.graph(f, fullgraph=True)
    g(x)
    g(x)
    with pytest.raises(sw.CaptureError, match="differs between two calls"):
        g(x)
    assert g.stats().replays == 0


@pytest.mark.every_framework
@pytest.mark.filterwarnings(SKIP)
def test_an_error_of_captures_alone_is_not_the_functions(rt, asks):
    """Code that refuses to be captured says so; eagerly it goes on."""
    x = some(rt)

    def f(x):
        if asks():
            raise RuntimeError("not in a capture")
        return x * 2

    g = rt.graph(f)
    for _ in range(4):
        assert on_host(g(x)).tobytes() == (on_host(x) * 2).tobytes()
    assert g.stats().replays == 0
    assert "not in a capture" in g.explain()


def test_asking_alone_changes_nothing(rt):
    """Where the answer makes no difference, a capture is held against the warm-up."""
    x = some(rt)

    def f(x):
        capturing()
        return x + 1

    g = rt.graph(f)
    for _ in range(5):
        g(x)
    assert (g.stats().warmups, g.stats().replays) == (1, 3)
    assert "asks whether" not in g.explain()


def test_around_eager_regions(rt):
    """So it is where parts of the function run live."""
    x = some(rt)
    eager = sw.eager(lambda y: y * 3)
    f = rt.graph(lambda x: eager(otherwise(x)) + 1)
    apart = np.asarray(captured(x)) * 3 + 1
    f(x)
    for _ in range(5):
        assert np.asarray(f(x)).tobytes() == apart.tobytes()
    assert f.stats().replays == 3


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("reads", ["ahead", "behind"])
def test_a_read_that_only_a_capture_meets_around_an_eager_region(rt, reads):
    """It is met by another warm-up: no call ends in it, and eager regions run once."""
    x, seen = some(rt), []

    @sw.eager
    def note(y):
        seen.append(float(y[0]))

    def read(y):
        return y * 2 if not capturing() else y * 2 + 0 * len(str(y))

    def f(x):
        y = read(x) if reads == "ahead" else x * 2
        note(y)
        return read(y) if reads == "behind" else y * 2

    g, expected = rt.graph(f), np.asarray(x) * 4
    for _ in range(6):
        assert np.asarray(g(x)).tobytes() == expected.tobytes()
    assert len(seen) == 6
    assert g.stats().replays == g.stats().recordings == 0
    assert "host" in g.explain()


def test_other_work_in_captures_around_an_eager_region(rt):
    """What counts is the work of captures, from the second warm-up on."""
    x, seen = some(rt), []
    note = sw.eager(lambda y: seen.append(y.size))

    def f(x):
        y = otherwise(x)
        note(y)
        return otherwise(y)

    g, plain = rt.graph(f), np.asarray(otherwise(otherwise(x))).tobytes()
    apart = np.asarray(captured(captured(x))).tobytes()
    found = [np.asarray(g(x)).tobytes() for _ in range(6)]
    assert found == [plain] + 5 * [apart]
    assert len(seen) == 6
    assert g.stats().replays == 3
    assert g.explain().count("asks whether a capture is on") == 1


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize(
    "lazily",
    [functools.partial, lambda fn, x: map(fn, [x]), lambda _, x: x.sum],
    ids=["partial", "map", "method"],
)
def test_an_object_that_other_work_made_can_be_used(rt, lazily):
    """Also where the calls before had the function asked, and nothing is recorded."""

    def f(x):
        return lazily(np.negative, x), otherwise(x)

    g = rt.graph(f)
    for _ in range(6):
        x = some(rt)
        (made, _), (expected, _) = g(x), f(x)
        if isinstance(made, map):
            made, expected = made.__next__, expected.__next__
        assert np.asarray(made()).tobytes() == np.asarray(expected()).tobytes()
    assert g.stats().replays == 0


class Told:
    """What a library has decided."""

    def __init__(self, *, checked):
        self.checked = checked


def test_an_object_that_says_other_things_in_captures(rt):
    """It is recorded, once a warm-up has done the work of a capture."""

    def f(x):
        return x * 2, Told(checked=not capturing())

    g, found = rt.graph(f), []
    for _ in range(7):
        x = some(rt)
        values, made = g(x)
        assert np.asarray(values).tobytes() == (np.asarray(x) * 2).tobytes()
        found.append(made.checked)
    assert found == [True] + 6 * [False]
    assert g.stats().replays >= 3


class Unfit(Exception):
    """Raised by `unfit`, in captures."""


def unfit(x):
    """Raise where that is captured, as optimizers do that no graph may hold."""
    if capturing():
        raise Unfit
    x += 1


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("region", [False, True])
def test_an_error_that_only_captures_raise(rt, region):
    """Each call does what it does without a graph, and once."""
    seen, state, x = [], {"h": some(rt)}, some(rt)
    note = sw.eager(lambda h: seen.append(float(h.sum())))

    def fn(x):
        x *= 2
        state["h"] = state["h"] + x
        if region:
            note(state["h"])
        unfit(x)
        return x + 1

    f = rt.graph(fn)
    host, h = np.arange(64.0) / 7, np.arange(64.0) / 7
    for i in range(6):
        y = f(x)
        host = host * 2
        h = h + host
        host = host + 1
        assert np.asarray(y).tobytes() == (host + 1).tobytes()
        assert np.asarray(x).tobytes() == host.tobytes()
        assert np.asarray(state["h"]).tobytes() == h.tobytes()
        assert len(seen) == region * (i + 1)
    assert f.stats().recordings == 0
    assert any("captured" in reason for reason, _ in f.stats().skipped)


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("region", [False, True])
def test_an_error_that_only_captures_raise_behind_a_read(rt, region):
    """What was written in Python by then is written once, as by a scaler of losses."""
    marks = []

    @sw.eager
    def note(scaler, h):
        marks.append(float(h.sum()))
        scaler.losses.append(h * 4)
        scaler.steps += 10

    class Scaler:
        def __init__(self):
            self.stages, self.losses, self.steps, self.last = {}, [], 0, None

        def __call__(self, x):
            self.losses.append(x * 2)
            self.stages["step"] = {"stage": 1, "found": x.sum()}
            if not region and capturing():  # other work, in front of the read
                x += 0.5
            if region:
                note(self, x)
            elif x.sum() > 3:
                x += 1
            self.steps += 1
            self.last = x * 3
            self.stages["step"]["stage"] = 2
            unfit(x)
            return x + 1

    x, scaler = some(rt), Scaler()
    f, host, losses = rt.graph(scaler), np.arange(64.0) / 7, []
    for i in range(9):
        y = f(x)
        losses.append((host * 2).tobytes())
        found = host.sum()
        if region:
            losses.append((host * 4).tobytes())
            assert marks.pop() == found
        else:
            host = host + (found > 3)
        assert np.asarray(scaler.last).tobytes() == (host * 3).tobytes()
        host = host + 1
        assert np.asarray(y).tobytes() == (host + 1).tobytes()
        assert np.asarray(x).tobytes() == host.tobytes()
        assert [np.asarray(each).tobytes() for each in scaler.losses] == losses
        assert scaler.steps == (i + 1) * (1 + 10 * region)
        assert scaler.stages["step"]["stage"] == 2
        assert float(scaler.stages["step"]["found"]) == found
        assert not marks
    assert f.stats().recordings == 0


@pytest.mark.parametrize("region", [False, True])
def test_an_error_of_the_functions_own_beside_a_question(rt, hidden, region):
    """It is raised where an eager call raises it, and leaves what that leaves."""
    x, note = some(rt), sw.eager(lambda _: None)

    def fn(x):
        capturing()
        x *= 2
        if region:
            note(x)
        if hidden():
            raise Unfit
        return x + 1

    f, host = rt.graph(fn), np.arange(64.0) / 7
    for i in range(6):
        hidden(int(i < 2))
        host = host * 2
        if i < 2:
            with pytest.raises(Unfit):
                f(x)
        else:
            assert np.asarray(f(x)).tobytes() == (host + 1).tobytes()
        assert np.asarray(x).tobytes() == host.tobytes()


@pytest.mark.parametrize("region", [False, True])
def test_what_is_written_once_is_written_behind_a_read(rt, region):
    """What captures leave out is no reason to refuse what warm-ups write."""
    note = sw.eager(lambda _: None)

    class Model:
        def __init__(self):
            self.kind = None

        def __call__(self, x):
            if not capturing():
                if region:
                    note(x)
                elif np.isnan(float(x.sum())):
                    raise ValueError("it is not a number")
            if self.kind is None:
                self.kind = "single"
            return x * 2

    x, model = some(rt), Model()
    f, expected = rt.graph(model), np.asarray(x) * 2
    for _ in range(8):
        assert np.asarray(f(x)).tobytes() == expected.tobytes()
    assert model.kind == "single"
    assert f.stats().replays >= 4
