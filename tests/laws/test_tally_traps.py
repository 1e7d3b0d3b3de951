"""Programs that seem only to add, and use what they add to where it is hard to see.

Or in which it is moved, copied, or found under another name. Each is as eager calls
are, in its results, in what it keeps, and in the classes of that.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import operator
import pickle
import pprint
import threading
import types
from typing import NamedTuple

import numpy as np
import pytest

import sapwood as sw

pytestmark = pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")

CALLS = 24
SEEN = (
    "o.n in {10, 20}",
    "o.n not in {10: 1, 20: 2}",
    "(o.n + 0) in {10, 20}",
    "(o.n, 1) in {(10, 1)}",
    "{o.n} & {10, 20}",
    "o.n is LIMIT",
    "-o.n < -9",
    "-o.n % 12 == 0",
    "~o.n < -9",
    "o.n.bit_length() > 3",
    "o.n.real > 9",
    "f'{o.n}' == '10'",
    "f'{o.n:03d}' > '009'",
    "o.d['n'] in {10}",
    "o.d['n'].bit_length() > 3",
    "'{0.n}'.format(o) > '10'",
    "len(pickle.dumps(o)) > 1000",
    "len(pprint.pformat(o.data)) > 34",
    "len(str(o.space)) > 19",
    "o.space == types.SimpleNamespace(n=10)",
    "o.logged == FIVE",
    "o.logged in [FIVE]",
    "[FIVE].count(o.logged)",
    "o.equal == TEN",
    "not o.equal != TEN",
    "o.equal in [TEN]",
    "TEN in {1: o.equal}.values()",
    "[TEN].count(o.equal)",
    "(1, o.equal) == (1, TEN)",
    "[TEN] == [o.equal]",
    "sorted([(TEN, 1), (o.equal, 0)], key=KEY)[0][1] > 0",
    "len(list(itertools.groupby([o.equal, TEN]))) == 1",
    "'10' in str(o.equal)",
    "'10' in '%s' % (o.equal,)",
    "'10' in repr([o.equal])",
    "operator.eq(o.equal, TEN)",
    "dataclasses.replace(o.equal, steady=1).n > 9",
    "dataclasses.astuple(o.equal)[0] > 9",
    "dataclasses.asdict(o.equal)['n'] > 9",
    "[o.space].count(types.SimpleNamespace(n=10))",
    "'10' in f'{o.space}'",
    "'10' in '%s' % o.space",
    "copy.copy(o.space) == types.SimpleNamespace(n=10)",
    "vars(o.space)['n'] > 9",
    "o.space.__dict__['n'] > 9",
    "o.n.__hash__() > 9",
    "9 < o.n < 13",
    "(lambda n=o.n: n > 9)()",
    "[n for n in (o.n,) if n > 9]",
    "o.__getstate__()['n'] > 9 if hasattr(object, '__getstate__') else False",
)
KEPT = (
    "o.kept = [o.n] * 2",
    "o.kept = (o.n, 1) + (2,)",
    "o.log.append([o.n] * 2)",
    "o.kept = copy.copy(o)",
    "o.kept = copy.deepcopy(o.inner)",
    "o.kept = pickle.loads(pickle.dumps(o.inner)).n",
    "o.d.get('rows')[0] += 1",
    "o.d.setdefault('rows', [0])[0] += x.shape[0]",
    "o.rows.__getitem__(0)[0] += 1",
    "k.n += 1",
    "o.kept = Late(); o.kept.n += 1",
    "each = o.queue.pop(0); each.n += 1; o.queue.append(each); o.kept = each",
    "o.first, o.second = o.second, o.first; o.first.n += 1",
)


class _Thing:
    def __init__(self, n=0):
        self.n = n


class _Late:
    n = 0


@dataclasses.dataclass(eq=False)
class _Data:
    n: int = 0


@dataclasses.dataclass
class _Equal:
    n: int = 0
    steady: int = 0


@dataclasses.dataclass
class _Logged:
    marks: list = dataclasses.field(default_factory=list)


def _order(pair):
    return functools.cmp_to_key(lambda a, b: (a == b) - 1)(pair[0])


def _state():
    o = _Thing()
    o.equal, o.logged = _Equal(), _Logged()
    o.log, o.kept, o.rows, o.queue = [], None, [[0]], [_Thing(), _Thing()]
    o.d, o.inner, o.data = {"n": 0, "rows": [0]}, _Thing(), _Data()
    o.space, o.first, o.second = types.SimpleNamespace(n=0), _Thing(), _Thing()
    return o


_ADDING = "o.n += 1; o.d['n'] += 1; o.inner.n += 1; o.data.n += 1"


def _shown(value):
    """Return what is kept, with the classes of all numbers in it."""
    if isinstance(value, dict):
        return {key: _shown(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    if isinstance(
        value, _Thing | _Late | _Data | _Equal | _Logged | types.SimpleNamespace
    ):
        return {key: _shown(each) for key, each in vars(value).items() if each is not o}
    return (type(value).__name__, value)


o = None


def _run(w, lines, calls=CALLS):
    globals()["o"] = state = _state()
    space = {"o": state, "k": _Late(), "Late": _Late, "LIMIT": 10, "types": types}
    space |= {"copy": copy, "pickle": pickle, "pprint": pprint, "TEN": _Equal(10)}
    space["FIVE"] = _Logged([1] * 5)
    space |= {"itertools": itertools, "operator": operator, "KEY": _order}
    space |= {"dataclasses": dataclasses}
    body = "".join(f"    {line}\n" for line in lines)
    exec(f"def f(x):\n    y = x + 1\n{body}    return y\n", space)
    f = w.graph(space["f"])
    for _ in range(calls):
        yield f(w.values(2)), repr(_shown(state)), repr(_shown(space["k"]))


@pytest.mark.every_framework
@pytest.mark.parametrize("condition", SEEN)
def test_a_condition_is_seen(agree, condition):
    """Whatever it is made of."""
    more = "; o.space.n += 1" if "o.space" in condition else ""
    more += "; o.equal.n += 1" if "o.equal" in condition else ""
    more += "; o.logged.marks.append(1)" if "o.logged" in condition else ""
    lines = [_ADDING + more, f"if {condition}: y = y * 2"]
    agree(lambda w: _run(w, lines))


@pytest.mark.every_framework
@pytest.mark.parametrize("line", KEPT)
def test_what_is_kept_is_plain(agree, line):
    """Numbers that listen are seen by nobody, and what is added is added once."""
    agree(lambda w: _run(w, [_ADDING, line], calls=12))


class _Alias(NamedTuple):
    """Lines before and of a function, and what others do before its late calls."""

    before: str
    body: str
    late: str
    shown: str
    each: str = ""


ALIASES = {
    "a list that is read": _Alias(
        "o.log, FIX = [], [1, 2]",
        "o.log.append(3); y = y * len(FIX)",
        "o.log = FIX",
        "(FIX[:], o.log[:])",
    ),
    "two lists become one": _Alias(
        "p.log, o.log = [], []",
        "o.log.append(1); p.log.append(2)",
        "o.log = p.log",
        "(o.log[:], p.log[:])",
    ),
    "one list becomes two": _Alias(
        "p.log = o.log = []",
        "o.log.append(1); p.log.append(2)",
        "o.log = []",
        "(o.log[:], p.log[:])",
    ),
    "two dicts become one": _Alias(
        "o.d, o.e = {'n': 5}, {'n': 5}",
        "o.d['n'] += 1; y = y * o.e['n']",
        "o.e = o.d",
        "(dict(o.d), dict(o.e))",
        each="o.d, o.e = {'n': 5}, {'n': 5}",
    ),
    "one dict by two names": _Alias(
        "o.d = o.e = {'n': []}; p.e = {'k': 0}",
        "o.d['n'].append(1); p.e['k'] += 1; y = y * max(9, len(o.e['n']))",
        "pass",
        "(len(o.d['n']), p.e['k'])",
    ),
    "one row by two numbers": _Alias(
        "ROWS = [[], []]",
        "ROWS[1].append(1); y = y * max(9, len(ROWS[-1]))",
        "pass",
        "[r[:] for r in ROWS]",
    ),
    "two objects become one": _Alias(
        "o.a, o.b = Thing(), Thing()",
        "o.a.n += 1; y = y * 2 if o.b.n % 5 == 0 else y",
        "o.a = o.b",
        "(o.a.n, o.b.n)",
    ),
    "a huge number": _Alias(
        "p.n = 1",
        "o.n += 1; y = y * 2 if p.n // 2.0 > 5 else y",
        "o.n = 10 ** 400",
        "o.n > 5",
    ),
}


@pytest.mark.every_framework
@pytest.mark.parametrize("alias", ALIASES)
def test_what_becomes_one_is_noticed(agree, alias):
    """And what was one and is two by now."""
    before, body, late, shown, each = ALIASES[alias]

    def program(w):
        space = {"o": _Thing(), "p": _Thing(), "Thing": _Thing}
        exec(before, space)
        exec(f"def f(x):\n    y = x + 1\n    {body}\n    return y\n", space)
        f = w.graph(space["f"])
        for i in range(30):
            exec(each, space)
            if i == 12 or (each and i > 12):
                exec(late, space)
            yield f(w.values(2)), repr(eval(shown, space))

    agree(program)


def test_a_list_that_is_passed_as_well(agree):
    """An argument may be what the function adds to, in any call."""

    def program(w):
        log = [1, 2]

        def add(x, given):
            log.append(3)
            return x * len(given)

        f = w.graph(add)
        for i in range(16):
            del log[2:]
            yield f(w.values(2), log if i == 11 else [1, 2]), [*log]

    agree(program)


def test_sums_under_a_lock_are_left_to_the_function(rt):
    """A replay does not hold it, and would lose what others add meanwhile."""
    state, lock, x = _Thing(), threading.Lock(), rt.array(np.zeros(2))

    def add(x):
        with lock:
            state.n += 1
        return x + 1

    f = rt.graph(add)
    for _ in range(6):
        f(x)
    assert (state.n, f.stats().replays) == (6, 0)


def test_numbers_of_a_graphed_function_itself(rt):
    """They are the user's, as those of any function."""
    x = rt.array(np.zeros(2))

    @rt.graph
    def f(x):
        f.calls += 1
        return x + 1

    f.calls = 0
    for i in range(8):
        f(x)
        assert f.calls == i + 1


def test_what_is_appended_and_returned_is_one(rt):
    """What the caller does to the one shows in the other."""
    state, x = _Thing(), rt.array(np.zeros(2))
    state.log = []

    def add(x):
        held = {"x": x + 1}
        state.log.append(held)
        return held

    f = rt.graph(add)
    for _ in range(6):
        assert f(x) is state.log[-1]
    ((reason, _),) = f.stats().skipped
    assert "returns what it keeps, state.log[0]" in reason


def test_another_thread_gets_plain_numbers(rt):
    """What it adds meanwhile is as plain as what it was added to."""
    state, other, x = _Thing(), _Thing(), rt.array(np.zeros(2))

    @sw.eager
    def meanwhile():
        pass

    def from_there():
        other.n = state.n + 1
        state.n += 1

    def add(x):
        state.n += 1
        if not state.n % 2:
            thread = threading.Thread(target=from_there)
            thread.start()
            thread.join()
        return x + 1

    f = rt.graph(add)
    for _ in range(6):
        f(x)
        assert (type(state.n), type(other.n)) == (int, int)
