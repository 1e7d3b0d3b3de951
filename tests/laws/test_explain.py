"""What `explain()` says is what `stats()` counts, in words that fit the numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from sapwood.tree.call.miss import Why
from sapwood.units import count_text

COUNT = re.compile(r"(\d+) (replay|recording|warm-up|op|page)(s?)\b")
LAUNCHED = re.compile(r"launched (?:(once)|(\d+) times)")


@pytest.mark.parametrize("calls", range(1, 8))
def test_counts_are_those_of_stats(rt, calls):
    """Every recording was launched by the call that recorded it, and by replays."""
    f = rt.graph(lambda x: x * 2 + 1)
    x, y = rt.array(np.ones(4)), rt.array(np.ones(5))
    for n in range(calls):
        f(y if n % 3 == 2 else x)
    text, stats = f.explain(), f.stats()
    told = {what: int(n) for n, what, _ in COUNT.findall(text.partition("\n")[0])}
    assert told == {
        "replay": stats.replays,
        "recording": stats.recordings,
        "warm-up": stats.warmups,
    }
    launches = [1 if once else int(n) for once, n in LAUNCHED.findall(text)]
    assert len(launches) == stats.recordings
    assert sum(launches) == stats.replays + stats.recordings


def test_one_is_not_said_as_many(rt):
    """A number and its noun agree, everywhere on the page."""
    f = rt.graph(lambda x: x * 2)
    x = rt.array(np.ones(4))
    for _ in range(3):
        f(x)
        assert all((n == "1") == (s == "") for n, _, s in COUNT.findall(f.explain()))
    assert COUNT.search(f.explain())


def test_number_and_noun():
    """None are many, as people say it."""
    told = [count_text(n, "page") for n in range(3)]
    assert told == ["0 pages", "1 page", "2 pages"]


REASON = re.compile(r"^      (.*)$", re.MULTILINE)


def _reasons(f):
    """Return what the last call that was not replayed was told about."""
    return REASON.findall(f.explain().rpartition("    (")[2])


def test_the_second_call_is_the_one_that_records(rt):
    """What was warmed up before is not said to be new."""
    f, x = rt.graph(lambda x: x * 2), rt.array(np.ones(4))
    f(x)
    assert _reasons(f) == [Why.UNSEEN.value]
    f(x)
    assert _reasons(f) == [Why.WARMED.value]


@pytest.mark.parametrize(
    ("then", "now", "about"),
    [
        ("f(x, n=1)", "f(x, n=2)", "n differs"),
        ("f(x, n=1, s=1)", "f(x, n=2, s=3)", "n and s differ"),
        ("f(x, n=1)", "f(y, n=1)", "x differs"),
        ("f(x, n=[1])", "f(x, n=[2])", "n[0] differs"),
        ("f(x)", "f(x=x)", "arguments are passed or nested otherwise"),
        ("f(x, z)", "f(x, x)", "other arrays share memory, or are one"),
    ],
)
def test_what_is_new_about_a_call_is_named(rt, then, now, about):
    """A signature that was not seen before is held against the nearest that was."""
    names = {
        "f": rt.graph(
            lambda x, n=0, s=0: (
                x + len(str([getattr(each, "shape", each) for each in (n, s)]))
            )
        ),
        "x": rt.array(np.ones(4)),
        "y": rt.array(np.ones(5)),
        "z": rt.array(np.ones(4)),
    }
    for _ in range(3):
        eval(then, names)
    eval(now, names)
    assert _reasons(names["f"]) == [f"{Why.UNSEEN.value}: {about}"]


def test_plain_arguments_are_part_of_a_signature(rt):
    """Calls that differ in a number alone are told apart by what is shown of them."""
    f, x = rt.graph(lambda x, n, *, s=1.0: x * n * s), rt.array(np.ones(4))
    f(x, 2, s=0.5)
    f(x, 3)
    assert "(x: float64[4]; n=2, s=0.5)" in f.explain()
    assert "(x: float64[4]; n=3)" in f.explain()


def test_many_plain_arguments_are_not_all_written_out(rt):
    """What is shown of a call stays a line."""
    f, x = rt.graph(lambda x, n: x * n[0]), rt.array(np.ones(4))
    f(x, list(range(1000)))
    assert "n[0]=0, n[1]=1, " in f.explain()
    assert "992 more values)" in f.explain()


def test_no_room_for_a_recording_is_said(rt):
    """A call that runs eagerly because all recordings are in use is told so."""
    f = rt.graph(lambda x, n: x * n, max_recordings=1)
    x = rt.array(np.ones(4))
    for n in (1, 1, 1, 2, 1, 2):
        f(x, n)
    assert f.stats().passed_through == 1
    (told,) = _reasons(f)
    assert told.startswith(f"{Why.EAGER.value}: max_recordings=1, ")


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_what_cannot_be_recorded_is_said_to_run_eagerly(rt):
    """Of calls that run eagerly no kind of call is said to be new twice."""
    seen = []
    f = rt.graph(lambda x: seen.append(1) or x * 2)
    g = rt.graph(lambda x: str(x.sum()) and x * 2)
    x = rt.array(np.ones(4))
    for _ in range(3):
        f(x)
        g(x)
    assert _reasons(f) == [f"{Why.AMBIENT.value}: seen[1] is 1 by now"]
    assert _reasons(g) == [f"{Why.EAGER.value}: it cannot be recorded"]
