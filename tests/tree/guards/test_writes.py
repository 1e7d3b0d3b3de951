"""Every way of writing in Python is noticed, and arrays can be bound again."""

# ruff: noqa: PLW0603 - how a function is written is what is tested

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict, deque
from random import randint

import numpy as np
import pytest

from sapwood.tree.guards import survey
from sapwood.tree.guards.changes import BoundArray
from sapwood.tree.guards.views import EMPTY

COUNT = 0
LOG: list[object] = []
SEEN = {1}
QUEUE = deque([1, 2])
STATE: dict[str, object] = {"n": 1}
GENERATOR = np.random.default_rng(0)
PRIVATE = random.Random(0)


class Param:
    def __init__(self, value):
        self.value, self.grad = value, None


class Slotted:
    __slots__ = ("h", "n")

    def __init__(self):
        self.n = 1


class Model:
    total = 0

    def __init__(self, make):
        self.n, self.make, self.buf = 1, make, None
        self.hs, self.cache = [make(2), make(2)], {}
        self.params = [Param(make(1)), Param(make(1))]
        self.slotted = Slotted()

    def count(self):
        self.n += 1

    def count_class(self):
        Model.total += 1

    def add(self):
        self.extra = 5

    def drop(self):
        del self.n

    def swap(self):
        self.params = list(self.params)

    def slot(self):
        self.slotted.n = 2

    def set_by_name(self, name="n"):
        setattr(self, name, 7)

    def keep(self):
        self.h = self.make(3)

    def lazily(self):
        if self.buf is None:
            self.buf = self.make(4)

    def item(self):
        self.hs[0] = self.make(2)

    def entry(self):
        self.cache["k"] = self.make(2)

    def backward(self):
        for p in self.params:
            p.grad = self.make(1)

    def clear(self):
        self.hs[1] = None

    def fill(self):
        self.slotted.h = self.make(2)

    def grow(self):
        self.hs.append(self.make(2))

    def nest(self):
        self.buf = (self.make(1), self.make(1))


def _count_global():
    global COUNT
    COUNT += 1


def _closure():
    n = 0

    def fn():
        nonlocal n
        n += 1

    return fn


def _calls():
    def fn():
        fn.calls += 1

    fn.calls = 0
    return fn


def _reorder():
    STATE["n"] = STATE.pop("n", 1)


def _draw_numpy():
    return np.random.rand()


PLAIN = {
    "global": (lambda: _count_global, "COUNT changed from 0 to 1"),
    "closure": (_closure, "n changed from 0 to 1"),
    "function attribute": (_calls, "fn.calls changed from 0 to 1"),
    "append": (lambda: lambda: LOG.append(1), "len(LOG) changed from 0 to 1"),
    "set": (lambda: lambda: SEEN.add(2), "len(SEEN) changed from 1 to 2"),
    "deque": (lambda: lambda: QUEUE.rotate(), "QUEUE[0] changed from 1 to 2"),
    "dict item": (lambda: lambda: STATE.update(n=2), "STATE['n'] changed from 1 to 2"),
    "dict key": (lambda: lambda: STATE.update(m=2), "STATE['m'] appeared, as 2"),
    "dict removed": (lambda: lambda: STATE.clear(), "STATE['n'] went, it was 1"),
    "random": (lambda: lambda: random.random(), "the state of random moved"),
    "random function": (lambda: lambda: randint(1, 9), "the state of randint.__self"),
    "random object": (lambda: lambda: PRIVATE.random(), "the state of PRIVATE moved"),
    "numpy": (lambda: _draw_numpy, "the state of np.random moved"),
    "numpy object": (
        lambda: lambda: GENERATOR.normal(),
        "the state of GENERATOR moved",
    ),
    "import inside": (
        lambda: lambda: __import__("random").random() and random,
        "the state of random moved",
    ),
}

METHODS = {
    "count": "self.n changed from 1 to 2",
    "count_class": "Model.total changed from 0 to 1",
    "add": "self.extra appeared, as 5",
    "drop": "self.n went, it was 1",
    "swap": "self.params changed from <list> to another <list>",
    "slot": "self.slotted.n changed from 1 to 2",
    "set_by_name": "self.n changed from 1 to 7",
    "grow": "len(self.hs) changed from 2 to 3",
    "nest": "self.buf changed from None to <tuple>",
}

BOUND = {
    "keep": ["self.h"],
    "lazily": ["self.buf"],
    "item": ["self.hs[0]"],
    "entry": ["self.cache['k']"],
    "backward": ["self.params[0].grad", "self.params[1].grad"],
    "clear": ["self.hs[1]"],
    "fill": ["self.slotted.h"],
}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    """Globals are as before after each test."""
    monkeypatch.setitem(globals(), "COUNT", 0)
    monkeypatch.setitem(globals(), "LOG", [])
    monkeypatch.setitem(globals(), "SEEN", {1})
    monkeypatch.setitem(globals(), "QUEUE", deque([1, 2]))
    monkeypatch.setitem(globals(), "STATE", {"n": 1, "z": 1})
    monkeypatch.setattr(Model, "total", 0)


@pytest.mark.parametrize(("make", "text"), PLAIN.values(), ids=PLAIN.keys())
def test_plain_writes_are_named(make, text, watch):
    """A write of a plain value anywhere is told, with its path."""
    changes = watch(make())
    assert any(str(change).startswith(text) for change in changes), changes
    assert not any(isinstance(change, BoundArray) for change in changes)


@pytest.mark.parametrize(("method", "text"), METHODS.items())
def test_plain_writes_on_objects_are_named(method, text, watch, array):
    """So is a write on the object that a method belongs to, and below it."""
    changes = watch(getattr(Model(array), method))
    assert {str(change) for change in changes} == {text}
    assert not isinstance(changes[0], BoundArray)


@pytest.mark.parametrize(("method", "paths"), BOUND.items())
def test_bound_arrays_can_be_bound_again(method, paths, watch, array, arrays):
    """Arrays bound to slots are told apart from plain writes, undone, and redone."""
    model = Model(array)
    call = getattr(model, method)
    before = survey(call, {}, arrays)
    changes = watch(call)
    assert [change.path for change in changes] == paths
    assert all(isinstance(change, BoundArray) for change in changes)
    for change in reversed(changes):
        change.undo()
    assert survey(call, {}, arrays).changes_since(before) == ()
    for change in changes:
        new = None if change.new is None else array(*change.new.shape)
        change.slot.write(new, {})
        assert change.slot.read({}) is new
    again = survey(call, {}, arrays).changes_since(before)
    assert [change.path for change in again] == paths


def test_globals_and_cells_can_be_bound_again(watch, array):
    """So can what a function keeps in globals, in its closure and on its class."""
    kept = None
    make = array

    def fn():
        nonlocal kept
        global COUNT
        kept, COUNT, Model.total = make(1), make(2), make(3)

    changes = watch(fn)
    assert {change.path for change in changes} == {"kept", "COUNT", "Model.total"}
    for change in changes:
        change.slot.write(change.path, {})
    assert (kept, COUNT, Model.total) == ("kept", "COUNT", "Model.total")


def test_a_function_that_writes_nothing_changes_nothing(watch, array):
    """Reading, calling and computing are no writes."""
    model = Model(array)

    def fn(x):
        return model.n + len(LOG) + COUNT + x, model.buf, [p.grad for p in model.params]

    assert watch(fn, x=1) == ()


class Books:
    """What a function keeps while it runs, and begins anew."""

    def __init__(self, empty):
        self.now, self.other = empty(), empty()


EMPTIES = {
    "dict": dict,
    "list": list,
    "set": set,
    "deque": deque,
    "ordered": OrderedDict,
    "defaultdict": lambda: defaultdict(list),
}


@pytest.mark.parametrize("empty", EMPTIES.values(), ids=EMPTIES)
def test_an_empty_container_is_as_good_as_another(watch, empty):
    """Books that were empty, were written, and begin anew are as they were."""
    books = Books(empty)

    def fn():
        held = books.now
        if isinstance(held, dict):
            held["n"] = 1
        else:
            (held.append if hasattr(held, "append") else held.add)(1)
        books.now = empty()

    assert watch(fn) == ()


@pytest.mark.parametrize(
    "write",
    [
        lambda books: setattr(books, "now", {"n": 1}),
        lambda books: setattr(books, "now", []),
        lambda books: setattr(books, "now", OrderedDict()),
        lambda books: setattr(books, "now", books.other),
        lambda books: setattr(books, "now", defaultdict(list)),
        lambda books: setattr(books, "full", {}),
        lambda books: (setattr(books, "now", {}), books.other.update(n=1)),
    ],
    ids=["full", "list", "ordered", "shared", "default", "emptied", "besides"],
)
def test_other_containers_are_noticed(watch, write):
    """Full, of another class, known by another name, or in the place of a full one."""
    books = Books(dict)
    books.full = {"n": 1}

    def fn():
        write(books)
        return books.now, books.other, books.full

    assert len(watch(fn)) == 1


def test_another_default_is_noticed(watch):
    """What an empty container makes of a missing key is a part of it."""
    books = Books(lambda: defaultdict(list))

    def fn():
        books.now = defaultdict(set)

    assert len(watch(fn)) == 1


def test_writes_into_arguments_are_noticed(watch, array):
    """Containers and objects that are passed in are watched too."""

    def fn(state, log, thing, d):
        state["n"] += 1
        log.append(1)
        thing.n = 3
        d["h"] = array(2)

    changes = watch(fn, state={"n": 1}, log=[], thing=Slotted(), d={})
    assert [str(change) for change in changes[:3]] == [
        "thing.n changed from 1 to 3",
        "state['n'] changed from 1 to 2",
        "len(log) changed from 0 to 1",
    ]
    assert [str(change) for change in changes[3:]] == [
        "d['h'] appeared, as <FakeArray>"
    ]


def test_slots_in_arguments_are_bound_in_the_arguments_of_the_call(watch, array):
    """A slot below a parameter is found in whatever a later call passes there."""

    def fn(states):
        states[0]["h"] = array(2)

    (change,) = watch(fn, states=[{}])
    assert change.old is EMPTY
    later, y = [{}], array(2)
    change.slot.write(y, {"states": later})
    assert later[0]["h"] is y


def test_net_effect_counts(watch, array):
    """What is taken away and bound again within the call is one binding."""
    model = Model(array)
    model.params[0].grad = array(1)

    def fn():
        for p in model.params:
            p.grad = None
        model.backward()

    changes = watch(fn)
    assert [change.path for change in changes] == [
        "model.params[0].grad",
        "model.params[1].grad",
    ]
