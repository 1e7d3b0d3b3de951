"""Law 10, of containers: a new list, dict or dataclass in the place of one like it.

Each call makes one of its own. Whoever has an earlier one keeps it as it was.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
import threading
import types
import typing
import warnings

import numpy as np
import pytest

import sapwood as sw
from tests.support.frameworks import on_host

CALLS = 24


@dataclasses.dataclass
class Pair:
    """Two values, of which one may be an array."""

    first: object
    second: object = 0


class Holder:
    """Keeps what functions make, each kind in its own place."""

    def __init__(self, array):
        one, two = array(np.zeros(3)), array(np.ones(3))
        self.out, self.table, self.pair, self.config = None, {}, Pair(1), {"k": 2}
        self.frames, self.where, self.turn = [one, two, one * 1], (0, "x"), 0
        self.log = types.SimpleNamespace(loss=one, names=["a"])
        self.inner = {"deep": [one, {"n": 1}]}


NEW = {
    "o.out = [x * 2, x * 3]": "o.out[0] + o.out[1]",
    "o.out = {'a': x * 2, 'n': 3}": "o.out['a'] * o.out['n']",
    "o.frames = [*o.frames[1:], x * 2]": "o.frames[0] + o.frames[1] * o.frames[2]",
    "o.frames = o.frames[::-1]": "o.frames[0] + x",
    "o.config = {**o.config}": "x * o.config['k']",
    "o.pair = Pair(x * 2, 3)": "o.pair.first * o.pair.second",
    "o.pair = Pair(o.pair, None).first": "x * 2",
    "o.log = Namespace(loss=x.sum(), names=['a'])": "x * o.log.loss * len(o.log.names)",
    "o.inner = {'deep': [x * 2, {'n': 1}]}": "o.inner['deep'][0] * 2",
    "o.inner = {'deep': [o.inner['deep'][0] * 0.5 + x, {'n': 1}]}": "x * 1",
    "o.inner = {'deep': (x * 2, [x, x])}": "o.inner['deep'][1][1] * 2",
    "o.table['last'] = [x * 2]": "o.table['last'][0] + 1",
    "o.where = (1 - o.where[0], 'x')": "x * (1 + o.where[0])",
    "o.turn = (o.turn + 1) % 2; o.out = [x * 2, o.turn]": "o.out[0] * o.out[1]",
    "o.out = None; o.out = [x * 2, x]": "o.out[0] * 3",
    "o.out = [x, x]": "o.out[0] * 3",
    "o.out = [x * 2]; o.table['n'] = {'m': [x * 3]}": "o.out[0] + o.table['n']['m'][0]",
}


def program(code, result):
    """Return a function that runs code on an object ``o``, and gives a result."""
    scope = {"Pair": Pair, "Namespace": types.SimpleNamespace}
    exec(f"def f(o, x):\n    {code}\n    return {result}", scope)
    return scope["f"]


def told(value):
    """Return what is in an object, and in all that is in it, as plain values."""
    if isinstance(value, dict):
        return {key: told(each) for key, each in value.items()}
    if isinstance(value, list | tuple | collections.deque):
        return [type(value), *map(told, value)]
    if isinstance(value, Holder | Pair | types.SimpleNamespace):
        return type(value), told(vars(value))
    if value is None or isinstance(value, str | int | float):
        return value
    return on_host(value).tolist()


def containers(value):
    """Return the containers in an object, in order."""
    found = []
    if isinstance(value, Holder | Pair | types.SimpleNamespace):
        found = [] if isinstance(value, Holder) else [value]
        value = vars(value)
    elif isinstance(value, dict | list):
        found = [value]
    inside = value.values() if isinstance(value, dict) else value
    found = [value] if isinstance(value, collections.deque) else found
    if isinstance(inside, str) or not hasattr(inside, "__iter__"):
        return found
    if type(value) in (dict, list) or isinstance(value, tuple) or found:
        found += (each for one in inside for each in containers(one))
    return found


class Seen:
    """All containers that an object ever had, and what was in them then."""

    def __init__(self):
        self.objects, self.texts = [], []

    def look(self, o):
        """Return which containers are old ones, and what all of them hold."""
        found = containers(o)
        which = []
        for each in found:
            known = [k for k, old in enumerate(self.objects) if old is each]
            if not known:
                self.objects.append(each)
            which.append(known[0] if known else len(self.objects) - 1)
        return which, [told(each) for each in self.objects]


@pytest.mark.every_framework
@pytest.mark.parametrize("verify", [0, 1])
@pytest.mark.parametrize("how", ["closed over", "passed"])
@pytest.mark.parametrize("code", NEW)
def test_each_call_makes_its_own(rt, code, how, verify):
    """Results and containers that are kept, and which are one, are as eager ones."""
    fn = program(code, NEW[code])
    o, p, ours, plain = Holder(rt.array), Holder(np.asarray), Seen(), Seen()
    f = rt.graph(fn if how == "passed" else lambda x: fn(o, x), verify=verify)
    kept, expected = [], []
    ours.look(o), plain.look(p)
    for n in range(CALLS):
        x = np.arange(3.0) + n % 5
        kept.append(f(*((o,) if how == "passed" else ()), rt.array(x)))
        expected.append(fn(p, x).tolist())
        assert ours.look(o) == plain.look(p)
    assert [on_host(each).tolist() for each in kept] == expected
    assert f.stats().skipped == ()
    assert f.stats().replays >= CALLS // 2


TRAPS = {
    "two slots have it": "o.out = o.table['same'] = [x * 2]",
    "the old one is written first": "o.frames.append(x); o.frames = o.frames[1:]",
    "an item of the old one": "o.frames[0] = x; o.frames = [*o.frames]",
    "one within the old one": "o.inner['deep'][1]['n'] += 1; o.inner = {**o.inner}",
    "it has one that was there": "o.out = [x * 2, o.config]",
    "it has an object": "o.out = [x * 2, Part()]",
    "it is returned": "o.out = result = [x * 2]; return result",
    "it has a tuple that was there": "o.out = [x * 2, o.where]; o.where = (x, 0)",
    "two slots have its tuple": "t = (x * 2, x); o.out = [t]; o.table['t'] = t",
    "it has a deque that was there": "o.out = [x, o.table.setdefault('d', Deque([x]))]",
    "it is in a named tuple": "n = Named([x * 2]); o.out = [n]; o.table['l'] = n",
    "it grows": "o.frames = [*o.frames, x]",
    "it counts": "o.turn += 1; o.out = [x * 2, o.turn]",
    "its keys change": "o.turn += 1; o.out = {o.turn: x}",
    "the way is new": "o.pair = Pair(Pair(x * 2)); o.pair.first = [o.pair.first]",
    "it contains itself": "o.out = [x * 2]; o.out.append(o.out)",
    "it is a slot's, and not": "o.out = [x * 2]; o.config['k'] = o.out; o.out = None",
    "it is in an argument, too": "o.out = [x * 2]; o.table['t'] = (o.out,)",
    "the object is new": "o.log = Namespace(loss=x, names=o.log.names)",
}


class Named(typing.NamedTuple):
    """Has one thing."""

    it: object


class Part:
    """Nothing is known of it."""


@pytest.mark.every_framework
@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("trap", TRAPS)
def test_what_may_be_no_new_one(rt, trap):
    """What replays could not make again runs eagerly: all is as without a graph."""
    scope = {"Pair": Pair, "Part": Part, "Namespace": types.SimpleNamespace}
    scope |= {
        "Named": Named,
        "Deque": collections.deque,
    }
    exec(f"def f(o, x):\n    {TRAPS[trap]}\n    return x + 1", scope)
    fn = scope["f"]
    o, p, ours, plain = Holder(rt.array), Holder(np.asarray), Seen(), Seen()
    f = rt.graph(lambda x: fn(o, x))
    shown = trap not in ("it contains itself", "it has an object")
    for n in range(CALLS):
        x = np.arange(3.0) + n % 5
        found, expected = f(rt.array(x)), fn(p, x)
        if isinstance(found, list):
            assert found is o.out
            found, expected = found[0], expected[0]
        assert on_host(found).tolist() == expected.tolist()
        if shown:
            assert ours.look(o) == plain.look(p)
        else:
            assert len(o.out) == len(p.out)
            assert (o.out[-1] is o.out) == (p.out[-1] is p.out)


@pytest.mark.every_framework
def test_others_write_what_calls_have_made(rt):
    """Between calls anybody may write the newest one, and those before."""
    fn = program("o.out = [x * 2, 3]", "x * o.out[1]")
    o, p, had, has = Holder(rt.array), Holder(np.asarray), [], []
    f = rt.graph(lambda x: fn(o, x))
    for n in range(CALLS):
        x = np.arange(3.0)
        assert on_host(f(rt.array(x))).tolist() == fn(p, x).tolist()
        had.append(o.out), has.append(p.out)
        if n % 6 == 5:
            for each in (had[n // 2], had[-1], has[n // 2], has[-1]):
                each[1] += 1
                each.append(None)
        assert [told(each) for each in had] == [told(each) for each in has]


@pytest.mark.every_framework
def test_one_that_grows_is_told_of(rt):
    """It never comes again, which is said by its name, and calls are right."""
    fn = program("o.frames = [*o.frames, x * 2]", "o.frames[-1] + 1")
    o, p = Holder(rt.array), Holder(np.asarray)
    f = rt.graph(lambda x: fn(o, x))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2 * CALLS):
            x = np.arange(3.0)
            assert on_host(f(rt.array(x))).tolist() == fn(p, x).tolist()
            assert told(o.frames) == told(p.frames)
    assert found
    assert all(re.search("frames", str(each.message)) for each in found)
    assert f.stats().warmups <= 9


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("length", [2, 5, 20])
def test_a_window_that_fills_up_is_recorded(rt, length):
    """A list is filled by the first calls, and by later ones moved along."""
    o, p = types.SimpleNamespace(seen=[]), types.SimpleNamespace(seen=[])

    def fn(o, x):
        o.seen.append(x * 2)
        if len(o.seen) > length:
            o.seen.pop(0)
        return sum(o.seen)

    f = rt.graph(lambda x: fn(o, x))
    for n in range(3 * CALLS):
        x = np.arange(3.0) + n
        assert on_host(f(rt.array(x))).tolist() == fn(p, x).tolist()
        assert told(o.seen) == told(p.seen)
    assert f.stats().replays >= CALLS


def test_eager_regions_and_new_containers(rt):
    """Behind a region nobody knows how to take one back: such a call runs eagerly."""
    o, x = Holder(rt.array), np.arange(3.0)
    aside = sw.eager(lambda y: y + 0.0)

    def fn(x):
        o.out = [x * 2]
        return aside(x * 2) + o.out[0]

    f = rt.graph(fn)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        for _ in range(CALLS):
            assert on_host(f(rt.array(x))).tolist() == [0, 4, 8]
            assert on_host(o.out[0]).tolist() == [0, 2, 4]
    assert f.stats().recordings == 0


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_what_no_replay_may_keep(rt):
    """Values differ that nobody guards, in a container, too: each call runs eagerly."""
    o, x = types.SimpleNamespace(out=None), rt.array(np.arange(3.0))

    def fn(x):
        o.out = [x * 2, os.urandom(8)]
        return x + 1

    f, seen = rt.graph(fn), set()
    for _ in range(CALLS):
        f(x)
        seen.add(o.out[1])
    assert len(seen) == CALLS


def test_threads_make_containers_of_their_own(rt):
    """What one thread's replay makes has nothing of another's in it."""
    o, xs = (
        types.SimpleNamespace(out=None),
        [rt.array(np.arange(3.0) + k) for k in (0, 1)],
    )

    def fn(x):
        o.out = [x * 2, x * 3]
        return x + 1

    f, wrong = rt.graph(fn), []

    def calls(x):
        for _ in range(200):
            f(x)
            two, three = map(on_host, o.out)
            if (two * 3).tolist() != (three * 2).tolist():
                wrong.append((two, three))

    threads = [threading.Thread(target=calls, args=(x,)) for x in xs]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
