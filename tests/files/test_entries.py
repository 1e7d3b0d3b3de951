"""Entries that say what was not recorded: each is a reason, and a miss."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

import sapwood as sw
from sapwood.persist.entries import Entries


class Checked:
    """A container of anybody's, which is particular about its parts."""

    def __init__(self, array):
        if not hasattr(array, "shape"):
            raise TypeError("a Checked holds an array")
        self.array = array


sw.register_container(Checked, lambda c: ([c.array], None), lambda _, c: Checked(*c))


class Trial:
    """A stateful function that a runtime has recorded, and its entry."""

    def __init__(self, open_runtime, store):
        self.open, self.entries = open_runtime, Entries(store)
        self.store = store
        self.call(open_runtime(store).rt, calls=3)
        (self.key,) = self.entries.keys()
        self.sections = dict(self.entries.find(self.key))

    def call(self, rt, calls=1):
        """Call the function; return how it was run, and what is said of misses."""
        o = SimpleNamespace(h=rt.array(np.zeros(4)), rate=2.0, text="t")
        table = {"w": rt.array(np.ones(4)), "n": None}

        def f(x, holder):
            o.h = o.h * o.rate + x
            y = x * table["w"] + float(len(o.text)) + holder["k"]
            return {"y": y, "tail": y[1:], "x": x[1:], "checked": Checked(y + 1.0)}

        f, state = rt.graph(f, name="f"), np.zeros(4)
        for k in range(calls):
            x = np.arange(4.0) + k
            holder = {"k": rt.array(np.full(4, 0.5))}
            found = f(rt.array(x), holder)
            state = state * 2.0 + x
            assert np.asarray(found["y"]).tolist() == (x + 1.5).tolist()
            assert np.asarray(found["checked"].array).tolist() == (x + 2.5).tolist()
            assert np.asarray(o.h).tolist() == state.tolist()
            del found
        return f.stats(), f.explain()

    def spoil(self, change, name="call"):
        """Change a section of the entry, and call in a new runtime."""
        table = json.loads(self.sections[name])
        change(table)
        text = json.dumps(table, separators=(",", ":"), sort_keys=True).encode()
        self.entries.put(self.key, self.sections | {name: text})
        return self.call(self.open(self.store).rt)


@pytest.fixture
def trial(open_runtime, store):
    """Return an entry to be spoiled."""
    return Trial(open_runtime, store)


def test_what_is_not_spoiled_is_restored(trial):
    """Else the tests below would prove nothing."""
    stats, _ = trial.spoil(lambda _: None)
    assert (stats.restored, stats.warmups) == (1, 0)


def _way(table, which, number, steps=None, start=None):
    row = table[which][number]
    row[2] = row[2] if steps is None else steps(row[2])
    row[1] = row[1] if start is None else start


CHANGES = {
    "no such start": (lambda t: _way(t, "ambient", 0, start="g"), "holds no array"),
    "no such view": (
        lambda t: _way(t, "ambient", 0, lambda s: [*s[:-1], ["nothing", "h"]]),
        "holds no array",
    ),
    "no such name": (
        lambda t: _way(t, "ambient", 0, lambda s: [*s[:-1], [s[-1][0], "g"]]),
        "holds no array",
    ),
    "a name that is a number": (
        lambda t: _way(t, "ambient", 0, lambda s: [*s[:-1], [s[-1][0], 7]]),
        "holds no array",
    ),
    "a way that is too long": (
        lambda t: _way(t, "ambient", 0, lambda s: [*s, *s]),
        "holds no array",
    ),
    "no array at its end": (
        lambda t: _way(t, "ambient", 0, lambda s: [*s[:-1], [s[-1][0], "rate"]]),
        "holds no array",
    ),
    "another order": (
        lambda t: t["ambient"].reverse(),
        "its arrays are reached by other names",
    ),
    "an array twice": (
        lambda t: t["ambient"].append(t["ambient"][0]),
        "its arrays are reached by other names",
    ),
    "a slot of a plain value": (
        lambda t: _way(t, "bindings", 0, lambda s: [*s[:-1], [s[-1][0], "rate"]]),
        "is not there to be bound",
    ),
    "a slot that cannot be bound": (
        lambda t: _way(t, "bindings", 0, lambda _: [["type", 0]]),
        "is not there to be bound",
    ),
    "a slot of nothing": (
        lambda t: _way(t, "bindings", 0, lambda _: [["cells", 99]]),
        "is not there to be bound",
    ),
    "a slot by no number": (
        lambda t: _way(t, "bindings", 0, lambda _: [["cells", "h"]]),
        "is not there to be bound",
    ),
    "a slot of an argument's": (
        lambda t: _way(t, "bindings", 0, lambda _: [["attributes", "h"]], start="x"),
        "is not there to be bound",
    ),
    "other sharing": (
        lambda t: t.update(sharing=["tuple"]),
        "other arrays share memory",
    ),
    "more places": (
        lambda t: t["roles"].append("pinned"),
        "it was recorded on other arrays",
    ),
    "other places": (
        lambda t: t.update(arguments=1),
        "it was recorded on other arrays",
    ),
    "an alias of nothing": (
        lambda t: t["outputs"]["leaves"].__setitem__(1, ["alias", 9]),
        "of an array that is not there",
    ),
    "a view beyond its array": (
        lambda t: t["outputs"]["leaves"][2].__setitem__(3, 16),
        "reaches beyond the array",
    ),
    "a view from before its array": (
        lambda t: t["outputs"]["leaves"][2].__setitem__(3, -8),
        "reaches beyond the array",
    ),
    "a container of other parts": (
        lambda t: t["outputs"]["leaves"].__setitem__(3, ["constant", 1]),
        "its result cannot be made: a Checked holds an array",
    ),
    "a role that is none": (
        lambda t: t["roles"].__setitem__(0, "landlord"),
        "a recording is damaged: a role",
    ),
    "more memory than there is": (
        lambda t: t["outputs"]["storages"][0].__setitem__(1, 1 << 34),
        "more memory than the device has",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_does_not_fit_is_a_reason(trial, name):
    """The call is then warmed up as if there were no store, and says why."""
    change, reason = CHANGES[name]
    stats, told = trial.spoil(change)
    assert (stats.restored, stats.warmups) == (0, 1), told
    assert reason in told


def test_a_slot_that_is_empty_may_be_bound(open_runtime, store):
    """None, a key that is not there: what the first call finds, the next ones bind."""

    def program(rt, calls):
        o, table = SimpleNamespace(h=None), {}

        def f(x):
            o.h, table["k"] = x + 1.0, x * 2.0

        f = rt.graph(f, name="f")
        for k in range(calls):
            o.h = None
            table.clear()
            f(rt.array(np.full(2, float(k))))
            assert np.asarray(o.h).tolist() == [k + 1.0] * 2
            assert np.asarray(table["k"]).tolist() == [k * 2.0] * 2
        return f.stats()

    program(open_runtime(store).rt, 3)
    stats = program(open_runtime(store).rt, 3)
    assert (stats.restored, stats.warmups, stats.recordings) == (1, 0, 0)


def test_an_argument_without_proof_leaves_the_store_alone(open_runtime, store):
    """Nothing is asked for, or kept, under a key that would mean nothing."""
    for _ in range(2):
        rt, thing = open_runtime(store).rt, object()
        f = rt.graph(lambda x, _: x + 1.0, name="f")
        for _ in range(3):
            f(rt.array(np.ones(2)), thing)
        assert (f.stats().warmups, f.stats().recordings) == (1, 1)
        assert rt.snapshot()["store"]["entries"] == 0


def test_recordings_with_eager_regions_are_not_kept(open_runtime, store):
    """Their Python is nowhere but here."""

    @sw.eager
    def log(x):
        pass

    def f(x):
        y = x + 1.0
        log(y)
        return y * 2.0

    for _ in range(2):
        rt = open_runtime(store).rt
        g = rt.graph(f)
        for k in range(3):
            found = g(rt.array(np.full(2, float(k))))
            assert np.asarray(found).tolist() == [2.0 * (k + 1)] * 2
        assert g.stats().recordings >= 1
        assert rt.snapshot()["store"]["entries"] == 0
