"""Law 10, of plain values: one in the place of another is assigned by replays, too.

The other one is guarded: a recording is of calls that find it there, so it is replayed
only where it comes again. Where none does, the function is skipped by name.
"""

from __future__ import annotations

import copy
import enum
import logging
import os
import re
import time
import types
import warnings

import numpy as np
import pytest

import sapwood as sw
from tests.support.frameworks import on_host

CALLS = 48
RINGS = {
    "o.i = (o.i + 1) % 3": 3,
    "o.on = not o.on": 2,
    "o.table['k'] = (o.table['k'] + 1) % 4": 4,
    "o.items[0], o.items[1] = 1 - o.items[1], o.items[0]": 4,
    "o.inner.word = 'b' if o.inner.word == 'a' else 'a'": 2,
    "o.gone = 1.5 if o.gone is None else None": 2,
    "type(o).shared = 1 - type(o).shared": 2,
    "o.i = (o.i + 1) % 2; o.on = o.i == 0; o.calls += 1": 2,
    "o.first = False": 1,
}
READ = "o.i + 2 * o.on + o.table['k'] + 3 * o.items[0] + type(o).shared"
ELSE = "(o.inner.word == 'b') + (o.gone or 0) + o.first"


class Turns:
    """Holds plain values of several kinds, each in its own place."""

    def __init__(self):
        self.i, self.on, self.gone, self.first, self.calls = 0, False, None, True, 0
        self.table, self.items = {"k": 0}, [0, 0]
        self.inner, self.spare = types.SimpleNamespace(word="a"), None

    def seen(self):
        return copy.deepcopy(vars(self)), type(self).shared


def program(code, scope=None):
    """Return a function that runs code on an object ``o``, and then reads it."""
    scope = {} if scope is None else scope
    lines = [f"    {line}\n" for line in (code, f"return x * ({READ} + {ELSE})")]
    exec(f"def f(o, x):\n{''.join(lines)}", scope)
    return scope["f"]


def turns():
    """Return an object of a class of its own."""
    return type("Own", (Turns,), {"shared": 0})()


@pytest.mark.every_framework
@pytest.mark.parametrize("verify", [0, 1])
@pytest.mark.parametrize("how", ["closed over", "passed"])
@pytest.mark.parametrize("code", RINGS)
def test_what_comes_again_is_recorded(rt, code, how, verify):
    """Results that are kept, and all values behind each call, are as eager ones."""
    fn, o, p, x = program(code), turns(), turns(), rt.array(np.arange(3.0))
    f = rt.graph(fn if how == "passed" else lambda x: fn(o, x), verify=verify)
    args = (o, x) if how == "passed" else (x,)
    kept, expected = [], []
    for _ in range(CALLS):
        kept.append(f(*args))
        expected.append(fn(p, np.arange(3.0)).tolist())
        assert o.seen() == p.seen()
    assert [on_host(each).tolist() for each in kept] == expected
    assert f.stats().skipped == ()
    assert f.stats().replays >= CALLS // 2


@pytest.mark.every_framework
def test_another_may_assign_between_calls(rt):
    """A value from elsewhere is a call of another kind; all goes on from there."""
    fn, o, p = program("o.i = (o.i + 1) % 3"), turns(), turns()
    f, x = rt.graph(lambda x: fn(o, x)), rt.array(np.arange(3.0))
    for number in range(CALLS):
        if number in (9, 10, 15, 20):
            o.i = p.i = 3 * number % 5
        assert on_host(f(x)).tolist() == fn(p, np.arange(3.0)).tolist()
        assert o.seen() == p.seen()


@pytest.mark.every_framework
@pytest.mark.parametrize("calls", [3, 30])
def test_what_comes_to_an_end_is_recorded(rt, calls):
    """A count that a formula uses is the last one from some call on."""
    code = f"o.i = min(o.i + 1, {calls})"
    fn, o, p = program(code), turns(), turns()
    f, x = rt.graph(lambda x: fn(o, x)), rt.array(np.arange(3.0))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3 * CALLS):
            assert on_host(f(x)).tolist() == fn(p, np.arange(3.0)).tolist()
            assert o.seen() == p.seen()
    assert len(told) == (calls > 8)
    assert f.stats().replays >= 2 * CALLS - 8


@pytest.mark.every_framework
def test_what_never_comes_again_is_skipped(rt):
    """It is said once, by its name, after eight calls; then calls are not watched."""
    fn, o, p = program("o.i = o.i + 1"), turns(), turns()
    f, x = rt.graph(lambda x: fn(o, x)), rt.array(np.arange(3.0))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3 * CALLS):
            assert on_host(f(x)).tolist() == fn(p, np.arange(3.0)).tolist()
            assert o.seen() == p.seen()
    (warning,) = told
    assert re.search(r"o\.i changed", str(warning.message))
    stats = f.stats()
    assert (stats.warmups, stats.recordings) == (8, 0)
    assert stats.passed_through == 3 * CALLS - 8


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize(
    "code",
    [
        # Nobody sees where the value is from.
        "o.spare = None if o.spare else 1 + int.from_bytes(os.urandom(7), 'big')",
        # It is the same in the warm-up and in a capture, and may be another later.
        "o.spare = None if o.spare else 1 + int(time.monotonic() // 1e9)",
        # More is kept of it than the slot: a cache of who logs what.
        "LOG.setLevel(30 - LOG.level)",
        # The process is told, too.
        "os.environ['TURN'] = str(1 - int(os.environ.get('TURN', '0')))",
    ],
)
def test_what_no_replay_may_assign(rt, code, monkeypatch):
    """The values differ, or may, or are more than a slot: each call runs eagerly."""
    monkeypatch.setenv("TURN", "0")
    log = logging.getLogger("tests.assigned")
    log.setLevel(10)
    fn, o = program(code, {"os": os, "time": time, "LOG": log}), turns()
    f, x = rt.graph(lambda x: fn(o, x)), rt.array(np.arange(3.0))
    for number in range(CALLS):
        f(x)
        odd = number % 2 == 0
        assert log.isEnabledFor(15) is not (odd and "LOG" in code)
        assert os.environ["TURN"] == str(int(odd and "TURN" in code))
    assert f.stats().replays == 0


def test_eager_regions_and_assigned_values(rt):
    """Behind a region nobody knows how to take one back: such a call runs eagerly."""
    o, x = turns(), rt.array(np.arange(3.0))
    aside = sw.eager(lambda y: y + 0.0)

    def fn(x):
        o.on = not o.on
        return aside(x * 2) + o.on

    f = rt.graph(fn)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for number in range(CALLS):
            assert on_host(f(x)).tolist() == [2 * v + 1 - number % 2 for v in range(3)]
    assert all(re.search(r"o\.on changed", str(each.message)) for each in told)
    assert told
    assert f.stats().recordings == 0


class Mode(enum.Enum):
    FAST, SLOW = 1, 2


def test_a_member_of_an_enum_is_assigned_again(agree):
    """As any plain value is: which one follows from the one before."""

    def program(w):
        o = types.SimpleNamespace(mode=Mode.FAST)

        def fn(x):
            o.mode = Mode.SLOW if o.mode is Mode.FAST else Mode.FAST
            return x * 2 if o.mode is Mode.FAST else x * 3

        f = w.graph(fn)
        for _ in range(12):
            yield f(w.values(3)), o.mode is Mode.FAST
        if w.name == "replayed":
            assert f.stats().replays >= 6

    agree(program)
