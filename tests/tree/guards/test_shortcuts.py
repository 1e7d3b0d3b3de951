"""Steps that are not taken while nothing changes give what taking them all gives."""

from __future__ import annotations

import ctypes
import gc
import random
import sys
import weakref
from operator import attrgetter

import pytest

from sapwood import _fast
from sapwood.tree.guards.steps import Op, Step, Steps, compiled
from tests.support.c_mutants import CMutant
from tests.support.steps_in_python import in_python

# CPython 3.13 does not tell of attributes that are written: all steps are taken there.
WATCHES = sys.version_info[:2] == (3, 12)
SEEDS = range(6)
TURNS = 400
TIMES = 40


class Thing:
    """Something with attributes."""


class Other(Thing):
    """Something of another class."""


class Model:
    """Parts with arrays and a setting each, in a dict; a list; globals; a function."""

    def __init__(self):
        self.space = {"model": Thing(), "loops": 0}
        self.model.parts = {name: self.part() for name in "abc"}
        self.model.row = [Thing(), Thing()]
        self.model.alike = [Other(), Other()]
        self.model.one, self.model.two = Other(), Other()
        self.model.pair = (Thing(), Thing())
        self.model.table, self.model.rest = {"first": Thing()}, [Thing(), Thing()]

        def run(one=1, *, two=2):
            return one, two

        self.model.run = run

    @property
    def model(self):
        return self.space["model"]

    def part(self):
        part = Thing()
        part.arrays = {"weight": Thing(), "bias": Thing()}
        part.training, part.grad = False, Thing()
        return part

    def program(self):
        """Return steps that say whether all is as it is now."""
        steps = _Steps()
        # The root is reached by a name, among others that are written all the time.
        space, model = self.space, self.model
        names = steps.add(Op.ROOT, 0, lambda: space)
        root = steps.add(Op.ITEM, names, "model")
        steps.test(Op.REFERS, root, 0, weakref.ref(model))
        steps.test(Op.LACKS, names, 0, ("gone",), lambda space: "gone" not in space)
        inside = steps.add(Op.ATTRIBUTE, root, "__dict__")
        row = steps.add(Op.ITEM, inside, "row")
        steps.test(Op.LENGTH, row, len(model.row))
        for k, value in enumerate(model.row):
            steps.latest(Op.ITEM, row, k, value)
        run = steps.add(Op.ITEM, inside, "run")
        steps.test(Op.REFERS, run, 0, weakref.ref(model.run))
        for name in ("__code__", "__defaults__"):
            value = getattr(model.run, name)
            steps.test(Op.IS, steps.add(Op.ATTRIBUTE, run, name), 0, value)
        given = steps.add(Op.ATTRIBUTE, run, "__kwdefaults__")
        steps.test(Op.IS, steps.add(Op.ITEM, given, "two"), 0, 2)
        pair = steps.add(Op.ITEM, inside, "pair")
        steps.latest(Op.ITEM, pair, 1, model.pair[1])
        within = steps.add(Op.ITEM, inside, "parts")
        keys = (*model.parts,)
        steps.test(Op.KEYS, within, 0, keys, lambda space: (*space,) == keys)
        for name, part in model.parts.items():
            _steps_of(part, steps.add(Op.ITEM, within, name), steps)
        alike = [steps.add(Op.ITEM, inside, name) for name in ("one", "two")]
        opened = steps.add(Op.OPEN, root, attrgetter("alike"))
        alike += [steps.add(Op.ITEM, opened, k) for k in (0, 1)]
        for each in alike:
            steps.test(Op.CLASS, each, 0, Other)
        steps.test(Op.APART, alike[0], 0, tuple(alike))
        table = steps.add(Op.OPEN, root, _table, _rests)
        for k, value in enumerate(_table(model)):
            steps.latest(Op.ITEM, table, k, value)
        return steps.made

    def change(self, chance, latest):
        """Change something, or nothing that counts; return what undoes it.

        ``latest`` are the references to expected arrays, which others replace.
        """
        part = chance.choice([*self.model.parts.values()])
        model, name = self.model, chance.choice(["weight", "bias"])
        other = _expected
        ways = [
            lambda: _set(part.__dict__, "training", True),
            lambda: _written(part, "training", True),
            lambda: _set(model.table, "first", Thing()),
            lambda: _exchanged(model.rest),
            lambda: _written(model, "rest", [*model.rest]),
            lambda: _written(model, "table", {"first": Thing()}),
            lambda: _written(model.run, "__code__", other.__code__),
            lambda: _written(model.run, "__defaults__", chance.choice([None, (2,)])),
            lambda: _written(model.run, "__kwdefaults__", {"two": 3}),
            lambda: _set(model.run.__kwdefaults__, "two", 3),
            lambda: _set(part.arrays, name, Thing()),
            lambda: _set(part.arrays, "more", Thing()),
            lambda: _set(model.parts, "d", Thing()),
            lambda: _set(self.space, "gone", 1),
            lambda: _set(model.__dict__, "row", [*model.row, 1]),
            lambda: _replaced(part),
            lambda: _reclassed(part),
            _shown_otherwise,
            lambda: _set(part.__dict__, "grad", Thing()),
            lambda: _set(model.parts, "b", self.part()),
            lambda: _exchanged(model.row),
            lambda: _set(vars(model), "one", chance.choice([Other(), model.two])),
            lambda: _set(vars(model), "two", chance.choice(model.alike)),
            lambda: _set(vars(model), "alike", [Other(), model.two]),
            lambda: _set(vars(model), "alike", [Other()] * 2),
            lambda: _set(part.__dict__, "arrays", dict(part.arrays)),
            lambda: _cleared(part.arrays),
            lambda: _set(part.__dict__, "unread", chance.random()),
            lambda: _set(self.space, "loops", chance.random()),
            lambda: _expected(latest, chance.randrange(len(latest))),
        ]
        return chance.choice(ways)()


class _Steps:
    """Steps that are put together, each filling a register of its own."""

    def __init__(self):
        self.made = Steps()

    def add(self, op, of, value, ask=None):
        self.made.registers += 1
        at = self.made.registers - 1
        self.made.steps.append(Step(op, at, of, value, ask))
        return at

    def test(self, op, at, of=0, value=None, ask=None):
        self.made.steps.append(Step(op, at, of, value, ask))

    def latest(self, op, of, key, value):
        """Have an array used that is read so."""
        at = self.add(op, of, key)
        self.test(Op.LATEST, at, len(self.made.latest))
        self.made.latest.append(weakref.ref(value))
        self.made.found.append(at)
        return at


def _table(model):
    """Return what has to be put together, anew every time."""
    return [model.table["first"], *model.rest]


def _rests(model):
    return [(vars(model), ("table", "rest")), (model.table, None), (model.rest, None)]


def _steps_of(part, at, steps):
    steps.test(Op.CLASS, at, 0, Thing)
    steps.test(Op.REFERS, at, 0, weakref.ref(part))
    steps.test(Op.SAME, at, at)
    inside = steps.add(Op.ATTRIBUTE, at, "__dict__")
    steps.test(Op.IS, steps.add(Op.ITEM, inside, "training"), 0, part.training)
    arrays = steps.add(Op.ITEM, inside, "arrays")
    steps.test(Op.LENGTH, arrays, len(part.arrays))
    for name, value in part.arrays.items():
        steps.latest(Op.ITEM, arrays, name, value)
    grad = steps.latest(Op.ATTRIBUTE, at, "grad", part.grad)
    # As an optimizer has it, too.
    steps.test(Op.SAME, steps.add(Op.ATTRIBUTE, at, "grad"), grad)


def _exchanged(row):
    old, row[1] = row[1], Thing()
    return lambda: row.__setitem__(1, old)


def _set(space, key, value):
    absent = key not in space
    old = space.get(key)
    space[key] = value
    return lambda: space.pop(key) if absent else space.__setitem__(key, old)


def _written(thing, name, value):
    old = getattr(thing, name)
    setattr(thing, name, value)
    return lambda: setattr(thing, name, old)


def _replaced(part):
    old = part.__dict__
    part.__dict__ = old | {"training": True}

    def undo():
        part.__dict__ = old

    return undo


def _reclassed(part):
    part.__class__ = Other

    def undo():
        part.__class__ = Thing

    return undo


def _shown_otherwise():
    def get(thing, name):
        found = object.__getattribute__(thing, name)
        return found | {"training": True} if name == "__dict__" else found

    Thing.__getattribute__ = get

    def undo():
        del Thing.__getattribute__

    return undo


def _expected(latest, k):
    value = Thing()
    old, latest[k] = latest[k], weakref.ref(value)

    def undo(value=value):
        del value
        latest[k] = old

    return undo


def _cleared(space):
    old = dict(space)
    space.clear()
    return lambda: space.update(old)


def wrong_turn(seed, make):
    """Return the turn at which a look was wrong, or None."""
    chance, model = random.Random(seed), Model()
    program = model.program()
    quick, slow = make(program), in_python(program)
    for turn in range(TURNS):
        # As many as it takes for a shortcut to be trusted, or fewer.
        for _ in range(chance.choice((1, 20, 40))):
            if quick() != slow():
                return turn
        undo = model.change(chance, program.latest)
        if quick() != slow():
            return turn
        undo()
        del undo
        if chance.random() < 0.2:
            gc.collect()
    return None if slow() is not None and quick() == slow() else TURNS


@pytest.fixture
def made():
    if _fast.native() is None:
        pytest.skip("nothing in C here")
    return compiled


@pytest.mark.parametrize("seed", SEEDS)
def test_shortcuts_say_what_all_steps_say(made, seed):
    """Whatever changes, in whatever order, and comes back as it was."""
    assert wrong_turn(seed, made) is None


def test_what_is_read_may_go(made):
    """Neither steps nor their shortcuts keep anything alive; they say it is gone."""
    model = Model()
    look = made(model.program())
    for _ in range(TIMES):
        assert look() is not None
    gone = [weakref.ref(model.model), weakref.ref(model.model.parts["a"])]
    del model.space["model"]
    gc.collect()
    assert [each() for each in gone] == [None, None]
    assert look() is None


@pytest.mark.skipif(not WATCHES, reason="dicts are watched on CPython 3.12")
def test_what_is_not_read_again(made):
    """What tells how many keys there are is not asked, whatever else is written."""
    asked, space = [], type("Odd", (dict,), {})(a=1)

    def lacks(space):
        asked.append(space)
        return True

    names = {"odd": space, "plain": {"a": 1}, "loops": 0}
    program = Steps(registers=3)
    program.steps = [
        Step(Op.ROOT, 0, 0, lambda: names),
        Step(Op.ITEM, 1, 0, "odd"),
        Step(Op.LACKS, 1, 0, ("b",), lacks),
        Step(Op.ITEM, 2, 0, "plain"),
        Step(Op.LACKS, 2, 0, ("b",), lacks),
    ]
    look = made(program)
    for turn in range(TIMES):
        names["loops"] = turn
        assert look() == []
    assert len(asked) == TIMES
    names["plain"]["b"] = 2
    assert look() is None


@pytest.mark.skipif(not WATCHES, reason="dicts are watched on CPython 3.12")
def test_what_is_bound_anew_each_time(made):
    """In two slots, as gradients are: for that, nothing else is opened again."""
    opened, thing, row = [], Thing(), [Thing()]
    thing.row = row

    def opens(of):
        opened.append(of)
        return [*of.row]

    def rests(of):
        return [(vars(of), ("row",)), (row, None)]

    steps = _Steps()
    at = steps.add(Op.ROOT, 0, lambda: thing)
    grad = steps.latest(Op.ATTRIBUTE, at, "grad", row[0])
    steps.test(Op.SAME, steps.add(Op.ATTRIBUTE, at, "grad"), grad)
    steps.latest(Op.ITEM, steps.add(Op.OPEN, at, opens, rests), 0, row[0])
    look = made(steps.made)
    for _ in range(TIMES):
        thing.grad = Thing()
        steps.made.latest[0] = weakref.ref(thing.grad)
        assert look() == [thing.grad, row[0]]
    assert len(opened) < 4
    steps.made.latest[0] = weakref.ref(row[0])
    assert look() is None


def _mutant(name, right, wrong, file="shortcut.h"):
    return CMutant(name, f"_fast/{file}", right, wrong)


MUTANTS = (
    _mutant(
        "which keys there are, uncounted",
        "if (w->whole && event != PyDict_EVENT_MODIFIED)",
        "if (0)",
        "watched.h",
    ),
    _mutant(
        "keys uncounted", "if (w->hashes[k] == hash)\n      return 1;", ";", "watched.h"
    ),
    _mutant(
        "dicts that change",
        "c->relied[k].on->changes == c->relied[k].changes",
        "c->relied[k].on",
    ),
    _mutant("changes overlooked", "c->events = events;", "c->events = events + 1;"),
    _mutant(
        "dicts that are replaced", "return *c->slot == c->is &&", "return !!*c->slot &&"
    ),
    _mutant(
        "dicts that are not shown", "Py_TYPE(c->of)->tp_getattro == c->gets;", "1;"
    ),
    _mutant(
        "classes", "return (const PyObject *)Py_TYPE(c->at) == c->is;", "return 1;"
    ),
    _mutant(
        "functions", "return found ? found == value : Py_IsNone(value);", "return 1;"
    ),
    _mutant("lists", "if (PyList_GetItem(c->of, k) != c->items[k])", "if (0)"),
    _mutant(
        "latest", "return refers(PyList_GetItem(latest, c->size), c->at);", "return 1;"
    ),
)


@pytest.fixture
def one_watcher_more():
    """Give back the place of one watcher of dicts: an interpreter has eight."""
    python = ctypes.pythonapi
    watch = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
    place = python.PyDict_AddWatcher(watch)
    assert place >= 0
    python.PyDict_ClearWatcher(place)
    yield
    python.PyDict_ClearWatcher(place)


@pytest.mark.skipif(not WATCHES, reason="dicts are watched on CPython 3.12")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
@pytest.mark.usefixtures("made", "one_watcher_more")
@pytest.mark.deep
def test_mutants_are_caught(mutant):
    """Each under one of the seeds at least."""
    make = mutant.load().compile_guards

    def wrongly_made(program):
        steps, found = tuple(program.steps), tuple(program.found)
        return make(steps, found, program.latest, program.registers)

    assert any(wrong_turn(seed, wrongly_made) is not None for seed in SEEDS)
