"""Numbers and lists that a function only adds to: each replay adds what eager calls do.

Their values decide nothing, and so no call is recorded for one of them. Where code does
anything else with them, they are read like all that a function reads.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import operator
import random
import time
import types
import warnings

import numpy as np
import pytest

import sapwood as sw
from tests.support.frameworks import capturing, on_host

SKIP = "ignore::sapwood.GraphSkipWarning"
CALLS = 10

ADDING = (
    "o.calls += 1",
    "o.calls -= 3",
    "o.seen += x.shape[0]",
    "o.inner.depth += len(x) + abs(-2)",
    "o.table['rows'] += 2",
    "o.lists['loss'].append(x * 2)",
    "o.lists['loss'].append(y)",
    "o.log.append(4)",
    "o.log.append(x + 1)",
    "o.log.extend([x, None])",
    "o.log += [y[1:], 'end']",
    "o.other.append(y); o.other.append(y)",
    "o.log.append((x + 1, 3))",
    "o.log.append({'loss': y, 'kind': 'train', 'both': [x, (y, None)]})",
    "o.counts[1] += 1",
    "o.slotted.n += 1",
    "o.data.steps += 1; o.data.losses.append(y)",
    "o.space.steps += 1; o.space.losses.append(y)",
    "TOTAL += 1",
    "NOTES.append(y)",
    "more(o)",
    "TOTAL += 1; total()",
    "o.table[rows.__name__] += 1",
    "rows.calls += 1",
    "o.table['rows'] += 1; o.table['last'] = y",
    "o.time += 0.1",
    "o.time += o.dt; o.time -= 0.3; o.time += len(x)",
    "o.table['time'] += x.shape[0] / 3; o.slotted.sum -= 0.1",
    "o.time += 0.0; o.time += -0.0; o.time += float('inf')",
    "o.turns += 1; o.clock.turns()",
)
ASKING = (
    "if o.calls % 3 == 0: y = y * 2",
    "if not o.calls % 2: y = y - 1",
    "y = y + (o.calls > 7)",
    "y = y * (o.calls % o.every)",
    "if (o.calls + 1) % o.every == 0: o.log.append(y)",
    "if o.calls >= o.every: y = y + 1",
    "if o.calls: y = y + 1",
    "y = y + (o.calls // 10)",
    "if 3 <= o.calls % 5: y = y * 3",
    "if o.table['rows'] % 4 == 1: y = y + 3",
    "if o.table['rows'] > o.table['every']: y = y + 3",
    "if o.calls % 2 and o.calls % 3: y = y + 5",
    "o.calls += 1; y = y + (o.calls % 2); o.calls += 1; y = y + (o.calls > 9)",
    "if o.calls % 4 == 3: o.calls += 2",
    "if o.calls % 4 == 3: o.clock.calls(); o.time += 0.7",
    "y = y * 2 if o.calls % 4 == 3 else y",
)
USING = (
    "Slots.visits += 1; type(o).visits += 2",
    "y = y * (o.calls % 3)",
    "y = y + len(o.log)",
    "y = y + (o.seen > 20)",
    "o.calls = 0",
    "y = y + sum(o.table.values())",
    "o.table['rows'] = o.table['rows'] * 2 % 7",
    "o.table['rows'] *= 2",
    "y = y * 0.5 ** o.calls",
    "y = y * (1.0 + o.calls)",
    "y = y + o.calls * y",
    "y = y + (7 < o.calls)",
    "y = y + (o.calls - o.seen > 2)",
    "y = y + (y.shape[0] > o.calls)",
    "y = y + (o.calls or 3)",
    "y = y + min(o.calls, 4)",
    "if o.log: y = y + 1",
    "y = y + (f'{o.calls}' > '4')",
    "o.log.append(o.calls)",
    "o.log.append((o.calls, y))",
    "o.log.append(o.table)",
    "o.log.append([])",
    "held = {'loss': y}; o.log.append(held); o.table['last'] = held",
    "held = [y]; o.log.append(held); o.other.append(held)",
    "o.log and o.log.pop()",
    "y = o.other[-1] + 1 if o.other else y",
    "o.calls *= 2",
    "last = o.lists['loss']; y = y + (last[-1] if last else 1)",
    "y = y + len(operator.attrgetter('log')(o))",
    "o.counts.sort()",
    "y = y + sum(each for each in o.counts)",
    "o.log = [*o.log, 1]",
    "o.seen = o.calls + 1",
    "y = y * (o.visits % 2)",
    "y = y + (rows.calls > 4)",
    "match o:\n        case Slots(calls=n):\n            y = y + n",
    "held = o.log; held.append(1); y = y + len(held)",
    "y = y + vars(o)['calls']",
    "y = y + getattr(o, 'cal' + 'ls')",
    "y = y + TOTAL",
    "o.counts.append(1); y = y + o.counts[1]",
    "y = y * o.slotted.n",
    "del o.log[:1]",
    "y = y + uses(o)",
    "y = y * (o.time + 0.1)",
    "y = y + (o.time > 0.35)",
    "o.time += 0.1; y = y + min(o.time, 0.3)",
    "o.time *= 1.5",
    "o.time = 0.1 + o.time",
    "o.log.append(o.time)",
    "o.calls += 0.5",
    "o.time += y",
    "o.time += numpy.float64(0.1)",
    "y = y + (o.clock == o.time)",
)


class _Slotted:
    __slots__ = ("n", "sum")

    def __init__(self):
        self.n, self.sum = 0, 0.5


class _Clock:
    """Its methods have the names of numbers."""

    def calls(self):
        return 1

    turns = calls


class _Inner:
    def __init__(self):
        self.depth = 0


@dataclasses.dataclass
class _Fields:
    steps: int = 0
    losses: list = dataclasses.field(default_factory=list)


class _State:
    visits = 0

    def __init__(self):
        self.calls, self.seen, self.counts = 0, 0, [0, 0]
        self.table = {"rows": 0, "last": 1.0, "every": 3, "time": 0.0}
        self.lists, self.clock = {"loss": []}, _Clock()
        self.time, self.dt, self.turns = 0.0, 0.25, 0
        self.every = 4
        self.log, self.other, self.slotted = [], [], _Slotted()
        self.inner, self.data = _Inner(), _Fields()
        self.space = types.SimpleNamespace(steps=0, losses=[])

    def shown(self):
        inside = {
            **vars(self),
            "visits": self.visits,
            "slotted": (self.slotted.n, self.slotted.sum),
            "clock": None,
            "inner": self.inner.depth,
            "data": [self.data.steps, *self.data.losses],
            "space": [self.space.steps, *self.space.losses],
        }
        return {
            k: [*v] if isinstance(v, list) else {**v} if isinstance(v, dict) else v
            for k, v in inside.items()
        }


def _function(lines):
    """Return a function of such lines, and its globals."""
    space = {
        "TOTAL": 0,
        "NOTES": [],
        "operator": operator,
        "Slots": _State,
        "numpy": np,
    }
    body = "".join(f"    {line}\n" for line in lines)
    exec(
        "def more(o):\n    o.calls += 2\n    o.log.append(1)\n\n"
        "def uses(o):\n    return o.calls\n\n"
        "def total():\n    global TOTAL\n    TOTAL += 2\n\n"
        "def rows(o):\n    pass\n\nrows.calls = 0\n"
        f"def f(o, x):\n    global TOTAL\n    y = x + 1\n{body}    return y\n",
        space,
    )
    return space["f"], space


def _program(lines, calls=CALLS, keep=2):
    def program(w):
        fn, space = _function(lines)
        _State.visits = 0
        o, kept = _State(), []
        f = w.graph(lambda x: fn(o, x))
        for i in range(calls):
            kept.append(f(w.values(4)))
            own = o.shown()
            counts = space["TOTAL"], space["rows"].calls
            yield kept[-keep:], own, counts, [*space["NOTES"]]
            if i == calls // 2:
                o.log, o.calls, o.every, o.time = [], 100, 5, 1e16
                o.table = {**o.table, "rows": 1}

    return program


@pytest.mark.every_framework
@pytest.mark.parametrize("line", ADDING)
def test_what_is_only_added_to_is_replayed(agree, line):
    """And other numbers, or another list, in its place are added to."""
    world = agree(_program([line]))
    assert world.count("passed_through") == 0
    assert world.count("replays") >= 2


@pytest.mark.every_framework
@pytest.mark.parametrize("line", ASKING)
def test_what_is_asked_is_asked_again(agree, line):
    """A call is replayed where a recording's number has answered the same."""
    program = _program(["o.calls += 1; o.table['rows'] += 1", line], calls=60)
    world = agree(program)
    assert world.count("passed_through") == 0
    assert world.count("replays") >= 10


@pytest.mark.every_framework
@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("line", USING)
def test_what_is_used_otherwise_is_read(agree, line):
    """By the function, or by another one that it calls."""
    agree(_program([*ADDING[:12], "o.counts[1] += 1", "more(o)", line]))


@pytest.mark.every_framework
@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("seed", range(16))
def test_random_lines(agree, seed):
    """Whatever is added and used, in any order: as eager calls do."""
    chance = random.Random(seed)
    lines = chance.choices(ADDING, k=chance.randint(1, 6))
    lines += chance.sample(ASKING, k=chance.choice((0, 1, 2)))
    lines += chance.sample(USING, k=chance.choice((0, 0, 1, 2)))
    chance.shuffle(lines)
    world = agree(_program(lines, calls=20))
    # Where two values are compared, their numbers are: no more than that is known.
    equal = any("o.table['every']" in line for line in lines)
    equal = equal and any("o.space" in line or "o.data" in line for line in lines)
    if not set(lines) & {*USING} and not equal:
        assert world.count("passed_through") == 0


@pytest.mark.every_framework
@pytest.mark.parametrize("how", ["argument", "self", "closure", "module"])
def test_wherever_the_number_is(agree, how):
    """In an object that is passed, in the method's own, in a variable, in a module."""

    def program(w):
        o = types.ModuleType("counting") if how == "module" else _State()
        o.calls, o.log, n = 0, [], 0

        def add(o, x):
            o.calls += 1
            o.log.append(x * 2)
            return x + 1

        def count(_, x):
            nonlocal n
            n += 1
            return x + 1

        if how == "self":
            cls = type("Step", (_State,), {"step": w.graph(add)})
            o.__class__ = cls
            w.functions[:] = [] if w.plain else [o.step]
            f = o.step
        elif how == "argument":
            graphed = w.graph(add)
            f = lambda x: graphed(o, x)  # noqa: E731
        else:
            inner = count if how == "closure" else add
            f = w.graph(lambda x: inner(o, x))
        for _ in range(CALLS):
            yield f(w.values(4)), o.calls, [*o.log], n

    world = agree(program)
    assert world.count("passed_through") == 0
    assert world.count("replays") >= 4


class _Watching:
    """An object that does more when an attribute is set."""

    def __init__(self):
        vars(self).update(calls=0, told=[])

    def __setattr__(self, name, value):
        vars(self)[name] = value
        self.told.insert(0, value)


class _Property:
    def __init__(self):
        self._calls = 0

    @property
    def calls(self):
        return self._calls

    @calls.setter
    def calls(self, value):
        self._calls = value * 2


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("make", [_Watching, _Property])
def test_an_attribute_that_does_more(agree, make):
    """It is set by code of the user's, which every call has to run."""

    def program(w):
        o = make()

        def add(x):
            o.calls += 1
            return x + 1

        f = w.graph(add)
        for _ in range(CALLS):
            yield f(w.values(4)), o.calls, [*getattr(o, "told", ())]

    agree(program)


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("number", [True, 1.5, None, "text", [1], {"a": 1}])
def test_another_kind_of_value_meanwhile(agree, number):
    """What stands there is no number any more, or was none: as eager, or its error."""

    def program(w):
        o = _State()

        def add(x):
            o.calls += 1
            return x + 1

        f = w.graph(add)
        for i in range(3 * CALLS):
            if i == CALLS:
                o.calls = number
            if i == 2 * CALLS:
                o.calls = 7
            try:
                yield f(w.values(4)), o.calls
            except TypeError as error:
                yield str(error)

    agree(program)


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("alias", ["a name", "a tally", "an item", "passed"])
def test_two_ways_to_one_list(agree, alias):
    """Code may use by one name what it adds to by another."""

    def program(w):
        o = _State()
        o.first = o.second = o.table = {"n": 0, "log": o.log}

        def by_name(x):
            o.first["n"] += 1
            return x + (o.second["n"] > 5)

        def by_tally(x):
            o.first["n"] += 1
            o.second["n"] += 1
            return x + 1

        def by_item(x):
            o.log.append(x)
            o.first["log"].append(x + 1)
            return x * 2

        def passed(x, log):
            o.log.append(1)
            return x + (len(log) > 5)

        fn = {"a name": by_name, "a tally": by_tally, "an item": by_item}.get(alias)
        f = w.graph(fn or passed)
        for _ in range(CALLS):
            more = () if fn else (o.log,)
            yield f(w.values(4), *more), [*o.log], o.table["n"]

    agree(program)


@pytest.mark.every_framework
@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("late", [False, True])
def test_a_function_that_raises_has_added(agree, late):
    """What was added before stays added, as with eager calls."""

    def program(w):
        o = _State()

        def add(x, fails):
            o.calls += 1
            o.log.append(x * 2)
            if fails:
                raise KeyError("as it should")
            o.seen += 1
            return x + 1

        f = w.graph(add)
        for i in range(CALLS):
            try:
                out = f(w.values(4), i % 3 == 1 if not late else i > 6)
            except KeyError as error:
                out = str(error)
            yield out, o.calls, o.seen, [*o.log]

    agree(program)


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("how", ["number", "list"])
def test_sums_that_differ(rt, how):
    """What a call adds that it makes of itself is added anew by each."""
    o, x, sums = _State(), rt.array(np.zeros(4)), set()

    def add(x):
        if how == "number":
            o.calls += time.perf_counter_ns()
        else:
            o.log.append(time.perf_counter_ns())
        return x + 1

    f = rt.graph(add)
    for i in range(CALLS):
        f(x)
        sums.add(o.calls if how == "number" else o.log[-1])
        assert len(sums) == i + 1
    assert f.stats().replays == 0


@pytest.mark.filterwarnings(SKIP)
def test_a_capture_that_fails_has_added_nothing(agree):
    """Each call adds once, also where an attempt at recording had added before."""

    def program(w):
        o = _State()

        def add(x):
            o.calls += 1
            o.log.append(4)
            o.lists["loss"].append(5)
            if capturing():
                raise RuntimeError("not while a capture is on")
            return x + 1

        f = w.graph(add)
        for _ in range(CALLS):
            yield f(w.values(4)), o.calls, [*o.log], [*o.lists["loss"]]

    agree(program)


@pytest.mark.filterwarnings(SKIP)
def test_beside_eager_regions(agree):
    """Where a region runs in between, each call adds once."""

    def program(w):
        o, ran = _State(), []

        @sw.eager
        def region(y):
            ran.append(o.calls)
            return y * 2

        def add(x):
            o.calls += 1
            o.log.append(x)
            y = region(x + 1)
            o.calls += 1
            return y - 1

        f = w.graph(add)
        for _ in range(CALLS):
            yield f(w.values(4)), o.calls, len(o.log), [*ran]

    agree(program)


@pytest.mark.every_framework
@pytest.mark.filterwarnings(SKIP)
def test_what_is_asked_beside_eager_regions(agree):
    """A region may add and ask, too, where nobody listens."""

    def program(w):
        o, plain = _State(), _State()

        @sw.eager
        def region(y):
            plain.calls += o.calls > 3
            return y * 2

        def add(x, more):
            if more:
                o.calls += 1
            y = x + (o.calls > 2)
            y = region(y)
            if o.calls > 5:
                y = y - 7
            return y

        f = w.graph(add)
        for i in range(2 * CALLS):
            yield f(w.values(4), i == 3), o.calls, plain.calls
            o.calls += 1

    agree(program)


@pytest.mark.filterwarnings(SKIP)
def test_what_only_a_capture_asks(agree):
    """Code that asks more of a number while a capture is on is asked so again."""

    def program(w):
        o = _State()

        def add(x):
            o.calls += 1
            late = capturing() and o.calls > 6
            return x + (o.calls > 9) + 0 * late

        f = w.graph(add)
        for _ in range(2 * CALLS):
            yield f(w.values(4)), o.calls

    agree(program)


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("how", ["questions", "answers"])
def test_questions_that_never_end(rt, how):
    """Of a number that is held against others each time, the number itself counts.

    So it does where each call gets another answer.
    """
    o, x = _State(), rt.array(np.zeros(4))
    o.due = 0

    def held_against_another(x):
        o.calls += 1
        return x + (o.calls > o.due)

    def in_turn(x):
        o.calls += 1
        return x + o.calls % 1000

    f = rt.graph(held_against_another if how == "questions" else in_turn)
    for i in range(60):
        o.due = 100 + i
        f(x)
    assert o.calls == 60
    assert type(o.calls) is int
    ((reason, calls),) = f.stats().skipped
    assert reason.startswith("o.calls changed from ")
    assert calls > 20


@pytest.mark.filterwarnings(SKIP)
def test_one_nest_in_two_lists(rt):
    """It stays one, so that replays are out of the question."""
    o, x = _State(), rt.array(np.zeros(4))

    def add(x):
        held = {"x": x + 1}
        o.log.append(held)
        o.other.append(held)

    f = rt.graph(add)
    for _ in range(CALLS):
        f(x)
        assert o.log[-1] is o.other[-1]
    assert len(o.log) == CALLS


def test_a_verified_replay_adds_once(rt):
    """The eager run that a replay is held against is taken back."""
    o, x = _State(), rt.array(np.zeros(4))

    def add(x):
        o.calls += 1
        o.log.append(x + 1)
        return x * 2

    f = rt.graph(add, verify=1)
    for i in range(CALLS):
        f(x)
        assert (o.calls, len(o.log)) == (i + 1, i + 1)
    assert f.stats().replays > 0
    assert all(on_host(each).tolist() == [1] * 4 for each in o.log)


def test_what_was_appended_is_the_callers(rt):
    """Arrays in the list keep their values while replays go on."""
    o, x = _State(), rt.array(np.zeros(4))

    def add(x):
        o.log.append(x * 2)

    f = rt.graph(add)
    for i in range(60):
        f(x)
        x += 1
        assert on_host(o.log[i // 2]).tolist() == [i // 2 * 2.0] * 4
    assert f.stats().recordings <= 5
    assert f.stats().passed_through == 0


def test_a_list_that_grows_is_not_walked(rt):
    """A call with many items costs what one with few does: none of them is read."""
    o, x = _State(), rt.array(np.zeros(4))
    o.log = [object() for _ in range(200_000)]

    def add(x):
        o.log.append(1)
        return x + 1

    f = rt.graph(add)
    for _ in range(4):
        f(x)
    assert (f.stats().replays, len(o.log)) == (2, 200_004)


def _reads(o, x):
    o.n += 1
    return x * 0.5**o.n


def _names(o, x):
    o.n += 1
    return x * getattr(o, "".join(("ra", "te")))


def _copies(o, x):
    o.n += 1
    return x * copy.copy(o).rate


def _measures(o, x):
    o.log.append(1.0)
    return x * len(o.log)


BESIDES = {
    "read": (_reads, 2, "reads it, too"),
    "named": (_names, 2, "may read it, by a name that it computes"),
    "copied": (_copies, 2, "copy at "),
    "measured": (_measures, 2, "reads it, too"),
}


@pytest.mark.parametrize("how", BESIDES)
def test_a_skip_says_what_reads_what_is_added_to(rt, how):
    """By file and line: without that, a replay could add."""
    fn, line, what = BESIDES[how]
    o = types.SimpleNamespace(n=0, rate=2.0, log=[])
    f = rt.graph(functools.partial(fn, o))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(12):
            f(rt.array(np.ones(2)))
    (said,) = [str(each.message) for each in told]
    assert f"{__file__}:{fn.__code__.co_firstlineno + line}" in said
    assert what in said
    assert "A replay could add to it, but" in said
