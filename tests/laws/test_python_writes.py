"""Law 10: Python writes are noticed; arrays bound to slots are bound by replays too."""

from __future__ import annotations

import array
import collections
import itertools
import random
import re
import threading
import time
import types

import numpy as np
import pytest

import sapwood as sw
from tests.support.frameworks import on_host

COUNT = 0
LATEST = None
MANY = 10
"""Calls in which a plain value comes again, or is seen to be another each time."""


class Counted:
    total = 0

    def __init__(self, **slots):
        self.n, self.items, self.table, self.seen = 0, [], {"k": 1}, set()
        self.inner = types.SimpleNamespace(depth=0)
        self.__dict__.update(slots)


def _global(_, x):
    global COUNT  # noqa: PLW0603 - what is tested
    COUNT = COUNT + 1
    return x + 1


def _closure():
    count = 0

    def f(_, x):
        nonlocal count
        count = count + 1
        return x + 1

    return f


def _statement(code):
    """Return a function that runs ``code`` on an object ``o`` and returns x + 1."""
    scope = {}
    exec(f"def f(o, x):\n    {code}\n    return x + 1", scope)
    return scope["f"]


WRITES = {
    "o.n": ("n", lambda o, x: (setattr(o, "n", o.n + 1), x + 1)[1]),
    "log": ("items", lambda o, x: (o.items.append(3), x + 1)[1]),
    "pop": ("items", lambda o, _: (o.items and o.items.pop(), o.items.extend([1, 2]))),
    "dict item": ("table", _statement("o.table['k'] = o.table['k'] + 1")),
    "dict key": ("table", _statement("o.table[len(o.table)] = 0")),
    "set": ("seen", _statement("o.seen.add(len(o.seen))")),
    "new attribute": ("fresh", _statement("o.fresh = getattr(o, 'fresh', 0) + 1")),
    "nested": ("depth", _statement("o.inner.depth = o.inner.depth + 1")),
    "class": ("total", _statement("type(o).total += 1")),
    "global": ("COUNT", _global),
    "closure": ("count", _closure()),
    "array into list": ("items", lambda o, x: (o.items.append(x), x + 1)[1]),
    "new array into list": ("items", lambda o, x: (o.items.append(x + 2), x + 1)[1]),
    "replaced object": ("inner", lambda o, x: _replace(o, x)),
}


def _replace(o, x):
    o.inner = types.SimpleNamespace(depth=o.inner.depth + 1)
    return x + 1


@pytest.fixture(autouse=True)
def _restore(monkeypatch):
    """Put globals and class attributes back."""
    monkeypatch.setitem(globals(), "COUNT", 0)
    monkeypatch.setitem(globals(), "LATEST", None)
    monkeypatch.setattr(Counted, "total", 0)


every_write = pytest.mark.parametrize(
    "write",
    [
        # There is no operation in it: torch captures nothing.
        pytest.param("pop", marks=pytest.mark.only("numpy")),
        *(write for write in WRITES if write != "pop"),
    ],
)


@pytest.mark.every_framework
@pytest.mark.parametrize("how", ["closed over", "argument", "self"])
@every_write
def test_a_python_write_is_refused_by_name(rt, write, how):
    """A slot that the function changes is a `CaptureError` that names it."""
    slot, fn = WRITES[write]
    o, x = Counted(), rt.array(np.zeros(2))
    if how == "closed over":
        f, args = rt.graph(lambda x: fn(o, x), fullgraph=True), (x,)
    elif how == "argument":
        f, args = rt.graph(lambda o, x: fn(o, x), fullgraph=True), (o, x)
    else:
        cls = type(
            "Sub",
            (Counted,),
            {"step": rt.graph(lambda self, x: fn(self, x), fullgraph=True)},
        )
        o = cls()
        f, args = o.step, (x,)
    with pytest.raises(sw.CaptureError, match=re.escape(slot)) as caught:
        for _ in range(MANY):
            f(*args)
    assert caught.value.remedy
    assert f.stats().replays == 0


class _Slotted:
    __slots__ = ("__weakref__", "n")

    def __init__(self):
        self.n = 0


class _Listed(list):
    """A list of the user's own."""


def _append(value):
    value.append(1)


def _first(value):
    value[0] += 1


def _slot(value):
    value.n = value.n + 1


OBJECTS = {
    "counter": (lambda: collections.Counter(x=1), lambda c: c.update("x")),
    "defaultdict": (lambda: collections.defaultdict(int), lambda d: d[len(d)]),
    "ordered dict": (lambda: collections.OrderedDict(a=1), lambda d: d.popitem()),
    "moved to end": (
        lambda: collections.OrderedDict(a=1, b=2),
        lambda d: d.move_to_end(next(iter(d))),
    ),
    "chain map": (lambda: collections.ChainMap({"a": 1}), lambda d: d.update(b=2)),
    "deque": (lambda: collections.deque([1], 5), _append),
    "list of its own": (_Listed, _append),
    "set": (set, lambda s: s.add(len(s))),
    "bytearray": (lambda: bytearray(2), _first),
    "array": (lambda: array.array("d", [0.0]), _first),
    "host array": (lambda: np.zeros(2), _first),
    "slots": (_Slotted, _slot),
    "function attribute": (lambda: _with_n(lambda: None), _slot),
    "deep": (
        lambda: [{"k": (types.SimpleNamespace(n=0),)}],
        lambda v: _slot(v[0]["k"][0]),
    ),
}


def _with_n(fn):
    fn.n = 0
    return fn


@pytest.mark.parametrize("kind", OBJECTS)
def test_a_write_into_an_object_of_any_kind_is_refused(rt, kind):
    """Whatever Python objects a function keeps its notes in, the notes are noticed."""
    make, write = OBJECTS[kind]
    notes, x = make(), rt.array(np.zeros(2))

    def fn(x):
        write(notes)
        return x + 1

    f = rt.graph(fn, fullgraph=True)
    with pytest.raises(sw.CaptureError, match="notes"):
        for _ in range(MANY):
            f(x)


LARGE = 100_000
"""So many bytes are more than is looked at of what signatures tell apart."""

GIVEN = OBJECTS | {
    "ordered dict": (
        lambda: collections.OrderedDict.fromkeys(range(MANY)),
        lambda d: d.popitem(),
    ),
    "appended bytes": (lambda: bytearray(2), _append),
    "large bytearray": (lambda: bytearray(LARGE), _first),
}


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("anew", [True, False], ids=["another", "the same"])
@pytest.mark.parametrize("inside", [False, True], ids=["", "in a tuple"])
@pytest.mark.parametrize("kind", GIVEN)
def test_a_write_into_an_argument_is_the_callers(rt, kind, inside, anew):
    """Each call leaves what it was passed as the plain one leaves its own."""
    make, write = GIVEN[kind]
    x, mine, others = rt.array(np.zeros(2)), make(), make()

    def fn(x, given):
        write(given[0] if inside else given)
        return x + 1

    f = rt.graph(fn)
    for _ in range(6):
        if anew:
            mine, others = make(), make()
        assert on_host(f(x, (mine,) if inside else mine)).tolist() == [1, 1]
        fn(x, (others,) if inside else others)
        assert _shown(mine) == _shown(others)


def _shown(thing):
    return thing.n if hasattr(thing, "n") else repr(thing)


@pytest.mark.every_framework
@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@every_write
def test_a_python_write_passes_through(rt, write):
    """Unless ``fullgraph=True`` each call writes once, as the plain one does."""
    _, fn = WRITES[write]
    o, p = Counted(), Counted()
    x = rt.array(np.zeros(2))
    f = rt.graph(lambda x: fn(o, x))
    for _ in range(5):
        found = f(x)
        if write != "pop":
            assert on_host(found).tolist() == [1, 1]
        if write not in ("global", "closure", "class"):
            fn(p, x)
            assert (o.n, len(o.items), o.table) == (p.n, len(p.items), p.table)
            assert (o.seen, o.inner) == (p.seen, p.inner)
    if write == "global":
        assert COUNT == 5
    assert f.stats().recordings == 0


@pytest.mark.minimal
def test_a_random_constant_is_refused(rt):
    """``random.random()`` that feeds a constant differs between two runs."""
    f, x = rt.graph(lambda x: x * random.random(), fullgraph=True), rt.array(np.ones(2))
    with pytest.raises(sw.CaptureError, match="random"):
        for _ in range(3):
            f(x)


@pytest.mark.parametrize(
    "source", [random, np.random, random.Random(1), np.random.default_rng(1)]
)
def test_a_random_source_at_hand_is_no_draw(rt, source):
    """A function may name what draws random numbers, as long as it draws none."""
    f, x = rt.graph(lambda x: x + (source is None)), rt.array(np.ones(2))
    for _ in range(4):
        f(x)
    assert f.stats().replays == 2


@pytest.mark.every_framework
@pytest.mark.parametrize("where", ["constant", "result"])
@pytest.mark.parametrize(
    "draw",
    [
        random.random,
        time.perf_counter_ns,
        pytest.param(itertools.count().__next__, marks=pytest.mark.only("numpy")),
    ],
)
def test_a_value_that_changes_by_itself_is_refused(rt, draw, where):
    """A number that no guard sees may be neither baked in nor returned."""
    x = rt.array(np.ones(2))
    if where == "constant":
        f = rt.graph(lambda x: x * draw(), fullgraph=True)
    else:
        f = rt.graph(lambda x: (x + 1, draw()), fullgraph=True)
    with pytest.raises(sw.CaptureError):
        for _ in range(3):
            f(x)
    assert f.stats().replays == 0


@pytest.mark.every_framework
def test_an_allocation_that_survives_without_a_slot(rt, framework):
    """What lives on where nobody can name it is refused, with its size and line."""
    keep = threading.Thread()

    def f(x):
        keep.held = x * 2  # the line
        return x + 1

    g, x = rt.graph(f, fullgraph=True), rt.array(np.zeros(128))
    with pytest.raises(sw.CaptureError, match="1 KiB") as caught:
        for _ in range(3):
            g(x)
    if framework.xp is np:  # torch's memory is found when the capture is over
        assert caught.value.where.startswith(__file__)
        line = int(caught.value.where.rsplit(":", 1)[1])
        assert line == f.__code__.co_firstlineno + 1
    del keep.held
    h = rt.graph(lambda x: x + 3, fullgraph=True)
    for _ in range(4):
        assert on_host(h(x)).tolist() == [3] * 128


@pytest.mark.every_framework
def test_temporaries_in_cycles_are_no_survivors(same):
    """An array that only a garbage cycle holds is not a survivor."""

    def f(x):
        y = x * 2
        cycle = [y]
        cycle.append(cycle)
        return y.sum()

    same(f, lambda w: (w.values(4),))


@pytest.mark.every_framework
def test_a_slot_that_is_restored_is_no_write(same):
    """A flag that the function sets and resets is as it was."""
    state = types.SimpleNamespace(depth=0, tmp=None)

    def f(x):
        state.depth += 1
        state.tmp = x * 2
        try:
            return state.tmp * state.depth
        finally:
            state.depth -= 1
            state.tmp = None

    same(f, lambda w: (w.values(4),))


@pytest.mark.every_framework
def test_local_containers_are_no_slots(same):
    """Lists and dicts that the function makes for itself are its own business."""

    def f(x):
        log, table = [], collections.defaultdict(list)
        for i in range(3):
            log.append(x * i)
            table[i % 2].append(log[-1])
        return table[0][0] + log[1], dict(table)

    same(f, lambda w: (w.values(4),))
