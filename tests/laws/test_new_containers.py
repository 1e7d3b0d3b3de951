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
        self.inner, self.both = {"deep": [one, {"n": 1}]}, {"a": one, "b": two}


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
    "o.out = (1, [x * 2])": "o.out[1][0] * 2",
    "o.out = ((x,), [x * 2])": "o.out[0][0] + o.out[1][0]",
    "o.turn = 1 - o.turn; o.out = (o.turn, (7,) * (o.turn + 1))": "x * len(o.out[1])",
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
        return [(key, told(each)) for key, each in value.items()]
    if isinstance(value, list | tuple | collections.deque):
        return [type(value), *map(told, value)]
    if isinstance(value, Holder | Pair | types.SimpleNamespace):
        return type(value), told(vars(value))
    if isinstance(value, np.ndarray):
        return value.tolist()
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
    "the old one is reordered": "c = o.both; c['a'] = c.pop('a'); o.both = {'a': x}",
    "it has one that was there": "o.out = [x * 2, o.config]",
    "it has an object": "o.out = [x * 2, Part()]",
    "it is returned": "o.out = result = [x * 2]; return result",
    "it has a tuple that was there": "o.out = [x * 2, o.where]; o.where = (x, 0)",
    "two slots have its tuple": "t = (x * 2, x); o.out = [t]; o.table['t'] = t",
    "it has a deque that was there": "o.out = [x, o.table.setdefault('d', Deque([x]))]",
    "it is in a named tuple": "n = Named([x * 2]); o.out = [n]; o.table['l'] = n",
    "one within is returned": "k = [x]; o.out = [k]; return k",
    "it lacks a field": "o.pair = Pair(x); del o.pair.second",
    "its fields are in another order": "o.pair = reordered(x)",
    "it grows": "o.frames = [*o.frames, x]",
    "it counts": "o.turn += 1; o.out = [x * 2, o.turn]",
    "its keys change": "o.turn += 1; o.out = {o.turn: x}",
    "the way is new": "o.pair = Pair(Pair(x * 2)); o.pair.first = [o.pair.first]",
    "it contains itself": "o.out = [x * 2]; o.out.append(o.out)",
    "it is a slot's, and not": "o.out = [x * 2]; o.config['k'] = o.out; o.out = None",
    "it is in an argument, too": "o.out = [x * 2]; o.table['t'] = (o.out,)",
    "the object is new": "o.log = Namespace(loss=x, names=o.log.names)",
}


def reordered(x):
    """Return a pair that got the second of its values first."""
    pair = object.__new__(Pair)
    pair.second, pair.first = 1, x
    return pair


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
        "reordered": reordered,
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
            assert found is (o.out[0] if trap == "one within is returned" else o.out)
            found, expected = found[0], expected[0]
        assert on_host(found).tolist() == expected.tolist()
        if shown:
            assert ours.look(o) == plain.look(p)
        else:
            assert len(o.out) == len(p.out)
            assert (o.out[-1] is o.out) == (p.out[-1] is p.out)


OLD = {
    "an item more": ("[1]", "old.append(1)"),
    "another number": ("{'n': 4}", "old['n'] += 1"),
    "another order": ("{'a': 1, 'b': 2}", "k = old.pop('a'); old['a'] = k"),
    "a host array": ("{'n': np.zeros(1)}", "old['n'] += 1"),
    "an attribute more": ("Namespace(v=None)", "old.a = 3"),
    "a field more": ("Pair(None)", "old.a = 3"),
    "within": ("{'h': Namespace(v=1)}", "old['h'].a = 3"),
    "nothing": ("[1]", "pass"),
}


@pytest.mark.every_framework
@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("write", OLD)
@pytest.mark.parametrize("new", ["[x * 2]", "{'x': x}", "Pair(x, 2)"])
def test_the_old_one_is_written_as_well(rt, new, write):
    """Whoever had put it there has it still, and finds what the function wrote."""
    old, code = OLD[write]
    scope = {"np": np, "Pair": Pair, "Namespace": types.SimpleNamespace}
    lines = f"old = o.out\n    o.out = {new}\n    {code}\n    return x + 1"
    exec(f"def f(o, x):\n    {lines}\ndef old():\n    return {old}", scope)
    fn, make = scope["f"], scope["old"]
    o, p = types.SimpleNamespace(), types.SimpleNamespace()
    f = rt.graph(lambda x: fn(o, x))
    for n in range(CALLS):
        x = np.arange(2.0 + n % 2)
        o.out, p.out = make(), make()
        had, has = o.out, p.out
        assert on_host(f(rt.array(x))).tolist() == fn(p, x).tolist()
        assert (told(had), told(o.out)) == (told(has), told(p.out))
    assert (f.stats().replays > 0) == (write == "nothing")


@pytest.mark.every_framework
@pytest.mark.parametrize("place", ["o.table['l']", "o.new"])
@pytest.mark.parametrize("often", [1, 8])
def test_one_where_nothing_is(rt, place, often):
    """The user takes it away now and then; calls put another one there."""
    fn = program(f"{place} = {{'x': x, 'y': 1}}", f"{place}['x'] * 2")
    o, p = Holder(rt.array), Holder(np.asarray)
    f = rt.graph(lambda x: fn(o, x))
    for n in range(CALLS):
        x = np.arange(2.0 + n % 2)
        for each in (o, p) if n % often == 0 else ():
            each.table.pop("l", None)
            vars(each).pop("new", None)
        assert on_host(f(rt.array(x))).tolist() == fn(p, x).tolist()
        assert told(o) == told(p)
    assert f.stats().replays > 0


@pytest.mark.every_framework
def test_what_is_kept_of_donated_arrays_stays(rt):
    """As what is returned of them."""
    o = types.SimpleNamespace(out=None)

    def fn(x):
        o.out = [x]
        return x.sum()

    f = rt.graph(fn, donate="x")
    for n in range(CALLS):
        assert float(on_host(f(rt.array(np.arange(3.0) + n)))) == 3.0 + 3 * n
        assert on_host(o.out[0]).tolist() == [n, n + 1, n + 2]


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_the_old_one_contains_itself(rt):
    """It is replaced as any other."""
    o = types.SimpleNamespace()
    f = rt.graph(lambda x: setattr(o, "out", [x * 2]) or o.out[0] + 1)
    for _ in range(8):
        o.out = [1]
        o.out.append(o.out)
        assert on_host(f(rt.array(np.arange(3.0)))).tolist() == [1, 3, 5]
        assert len(o.out) == 1


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_arrays_are_keys(rt):
    """What a dict comes to have is asked for nothing."""
    found = {}

    def fn(x):
        found[x] = x + 1
        return x * 2

    f = rt.graph(fn)
    for n in range(1, CALLS):
        f(rt.array(np.arange(3.0)))
        assert len(found) == n


GIVEN = {
    "passed": lambda x: {x: 1.0},
    "new": lambda x: {x * 2: 1.0},
    "in a tuple": lambda x: [{(1, x * 2): x}],
    "with a default": lambda x: collections.defaultdict(list, {x: [x + 1]}),
}


def _keys(found):
    tables = found if isinstance(found, list) else [found]
    keys = [key for each in tables for key in each]
    return [on_host(key[1] if isinstance(key, tuple) else key).tolist() for key in keys]


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("appended", [False, True])
@pytest.mark.parametrize("given", GIVEN)
def test_arrays_are_keys_of_what_is_given(rt, given, appended):
    """No replay would make them anew: such a function is skipped by name."""
    held = []

    def fn(x):
        found = GIVEN[given](x)
        if appended:
            held.append(found)
            return x + 1
        return found

    f = rt.graph(fn)
    for n in range(8):
        found = f(rt.array(np.full(2, float(n))))
        held += () if appended else [found]
    times = 1.0 if given in {"passed", "with a default"} else 2.0
    assert [_keys(each) for each in held] == [[[n * times] * 2] for n in range(8)]
    assert not f.stats().replays
    if not appended:
        assert any("an array is a key" in why for why, _ in f.stats().skipped)


def test_arrays_that_are_read_by_a_name_are_keys(rt):
    """They are the same in each call."""
    weights = [rt.array(np.full(2, float(n))) for n in range(3)]
    f = rt.graph(lambda x: {each: each * x for each in weights})
    for n in range(6):
        found = f(rt.array(np.full(2, float(n))))
        assert [*map(id, found)] == [*map(id, weights)]
        assert [on_host(x).tolist() for x in found.values()] == [
            [k * float(n)] * 2 for k in range(3)
        ]
    assert f.stats().replays >= 3


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


@pytest.mark.every_framework
def test_others_put_arrays_elsewhere(rt):
    """Each call finds a container of other arrays, and leaves that as it was."""
    o = types.SimpleNamespace()

    def fn(x):
        o.frames = [o.frames[1], o.frames[0] + x]
        return o.frames[0] * 2

    f = rt.graph(fn)
    for n in range(CALLS):
        arrays = [rt.array(np.arange(3.0) + k + n) for k in (0, 1)]
        o.frames = old = [*arrays]
        found = on_host(f(rt.array(np.ones(3)))).tolist()
        assert found == [2 * (value + 1 + n) for value in range(3)]
        assert old[0] is arrays[0]
        assert old[1] is arrays[1] is o.frames[0]
        assert on_host(o.frames[1]).tolist() == [value + 1 + n for value in range(3)]
    assert f.stats().replays >= CALLS // 2


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("comes_again", [False, True])
def test_what_no_replay_may_keep(rt, comes_again):
    """Values differ that nobody guards, in a container, too: each call runs eagerly."""
    o, x = types.SimpleNamespace(out=None), rt.array(np.arange(3.0))

    def fn(x):
        o.out = [x * 2, os.urandom(8)]
        return x + 1

    f, seen = rt.graph(fn), set()
    for _ in range(CALLS):
        f(x)
        seen.add(o.out[1])
        o.out = None if comes_again else o.out
    assert len(seen) == CALLS


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_threads_make_containers_of_their_own(rt):
    """What one thread's replay makes has nothing of another's in it.

    A call that another thread binds under is skipped, and said to be. Recordings are
    there before: who reads a slot while another thread records finds no values yet.
    """
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

    held = []
    for i in range(12):
        f(xs[i % 2])
        held.append(o.out)
    threads = [threading.Thread(target=calls, args=(x,)) for x in xs]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_another_kind_of_container_in_one_place(agree):
    """Two functions put theirs there by turns, and find the other's."""

    def program(w):
        s = types.SimpleNamespace(last=None)

        def train(x):
            s.last = {"h": x + 1}

        def evaluate(x):
            s.last = (x * 2, x)

        def keep(x):
            s.last = [x * 3]

        functions = [w.graph(each) for each in (train, evaluate, keep)]
        x = w.values(4)
        for i in range(18):
            functions[i % 3](x)
            yield s.last

    agree(program)
