"""A survey that begins with what is known is what a new walk finds, whatever is done.

A world of everything that a function can reach is written to at random, and surveyed
again and again: by one surveyor, and each time by a new walk.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import enum
import functools
import random
import sys
import types
import weakref

import numpy as np
import pytest

from sapwood.tree.guards import Surveyor, survey
from tests.support.seeded import steps_under
from tests.support.tree_mutants import SURVEY_MUTANTS

SEEDS = (1, 2, 3, 4)
TURNS = 200
LATELY = contextvars.ContextVar("LATELY", default=0)


class Kind(enum.Enum):
    """Members say all by which one they are."""

    PLAIN = 1
    FANCY = 2


class Slotted:
    """Has no dict, and cannot be referred to weakly."""

    __slots__ = ("rate", "weight")


@dataclasses.dataclass
class Config:
    """Compared by what is in it."""

    width: object = 3
    more: object = ()


def _world(array):
    """Return a function, and what it reaches by any way there is."""
    space = {"__name__": "a_world", "LATELY": LATELY, "Kind": Kind}
    exec(_SOURCE, space)
    layers = [space["Layer"]() for _ in range(3)]
    for layer in layers:
        layer.weight, layer.rate, layer.parts, layer.table = array(2), 0.5, [], {}
    slotted = Slotted()
    slotted.rate, slotted.weight = 1, array(3)
    space |= {
        "LAYERS": layers,
        "PAIR": (layers[0], [1, 2]),
        "TABLE": {"a": array(2), "b": 2, "c": layers[1]},
        "LAST": layers[2],
        "SLOTTED": slotted,
        "CONFIG": Config(),
        "RATE": 0.25,
        "NAMES": {"one", "two"},
        "DEQUE": collections.deque([1.5, array(1)]),
        "BYTES": bytearray(b"abc"),
        "HOST": np.arange(3),
        "PARTIAL": functools.partial(space["helper"], 1, scale=2.0),
        "PROXY": types.MappingProxyType({"k": layers[0]}),
        "SEEN": weakref.ref(layers[0]),
        "SPACE": types.SimpleNamespace(rate=1.0, inner=None),
        "MODULE": types.ModuleType("somebodys"),
        "SOURCE": np.random.default_rng(1),
        "KIND": Kind.PLAIN,
        "ONE": array(5),
    }
    space["MODULE"].rate, space["first"] = 3, space["closed"]
    return space


_SOURCE = """
class Base:
    kind = "plain"

    def run(self, x):
        return x, self.weight, self.rate, self.parts, self.table, self.kind

class Other(Base):
    kind = "other"

class Layer(Base):
    @property
    def scaled(self):
        return self.rate, RATE

def helper(a, b=(1, 2), *, scale=1.0):
    return a, b, scale, ONE

def closing(inner):
    def closed():
        return inner, KIND, Kind.FANCY
    return closed

closed = closing([1])

def fn(x, call, states=None, thing=None, n=0):
    for layer in LAYERS:
        layer.run(x), layer.scaled
    MODULE.rate, SPACE.rate, SPACE.inner, CONFIG.width, CONFIG.more
    SLOTTED.rate, SLOTTED.weight, PAIR, TABLE, LAST.rate, NAMES, DEQUE, BYTES, HOST
    closed(), PARTIAL(), helper(1), PROXY, SEEN, SOURCE.random, LATELY.get()
    len(states), thing.rate, max(n, 1), helper.note
"""


class Writer:
    """Writes to a world at random; ``undone`` takes back what was done."""

    def __init__(self, space, array, chance):
        self.space, self.array, self.chance = space, array, chance
        self.undone = []

    def value(self):
        """Return a value: plain ones made anew, arrays, or the world's."""
        make = self.chance.choice(
            [
                lambda: float("0.5"),
                lambda: float("0.25"),
                lambda: int("12345678"),
                lambda: None,
                lambda: "text"[: self.chance.randrange(4)],
                lambda: (1, float("2.0")),
                lambda: (1, [2]),
                lambda: (bytearray(b"x"),),
                list,
                lambda: self.array(2),
                lambda: self.array(3),
                lambda: self.chance.choice(self.space["LAYERS"]),
                lambda: vars(self.chance.choice(self.space["LAYERS"])).get("parts"),
                lambda: vars(self.chance.choice(self.space["LAYERS"])).get("table"),
                lambda: self.space["closed"],
                lambda: self.chance.choice([*Kind]),
                lambda: Config(),
                lambda: iter([1, 2]),
                lambda: self.space["Layer"],
                object,
            ]
        )
        return make()

    def write(self):
        """Write anywhere."""
        if self.chance.random() < 0.25:
            while self.undone:
                self.back()
        else:
            ways = [self.attribute, self.item, self.name, self.inside, self.kind]
            ways += [self.code, self.weight, self.weight, self.grown]
            self.chance.choice([*ways, self.back, self.back])()

    def back(self):
        """Take back what was done last."""
        if self.undone:
            self.undone.pop()()

    def attribute(self):
        space = self.space
        owners = [*space["LAYERS"], space["SPACE"], space["CONFIG"], space["SLOTTED"]]
        owners += [space["MODULE"], space["Base"], space["Layer"], space["helper"]]
        thing = self.chance.choice(owners)
        names = "weight", "rate", "parts", "kind", "inner", "width", "note", "run"
        name = self.chance.choice(names)
        with contextlib.suppress(AttributeError):
            old = vars(thing).get(name, self) if hasattr(thing, "__dict__") else None
            if self.chance.random() < 0.2:
                delattr(thing, name)
            else:
                setattr(thing, name, self.value())
            if old is self:
                self.undone.append(lambda: _forget(thing, name))
            else:
                self.undone.append(lambda: setattr(thing, name, old))

    def item(self):
        space, chance = self.space, self.chance
        things = [space["TABLE"], space["LAYERS"], space["DEQUE"], space["PAIR"][1]]
        things += [space["LAYERS"][0].parts, space["LAYERS"][1].table]
        things = [each for each in things if type(each) is not tuple and len(each)]
        thing = chance.choice(things)
        keys = list(thing) if isinstance(thing, dict) else range(len(thing))
        key = chance.choice(list(keys))
        old = thing[key]
        if thing is not space["LAYERS"] or type(old) is space["Layer"]:
            thing[key] = old if thing is space["LAYERS"] else self.value()
        self.undone.append(lambda: thing.__setitem__(key, old))

    def name(self):
        space = self.space
        names = "RATE", "KIND", "ONE", "CONFIG", "HOST", "LAST", "closed"
        name = self.chance.choice(names)
        old, space[name] = space[name], self.value()
        if name == "closed":
            held = space["first"].__closure__[0].cell_contents
            space[name] = space["closing"](held)
        if name == "CONFIG" and self.chance.random() < 0.8:
            space[name] = dataclasses.replace(old) if type(old) is Config else Config()
        self.undone.append(lambda: space.__setitem__(name, old))

    def inside(self):
        """Change something that stays the object that it is."""
        space = self.space
        self.chance.choice(
            [
                lambda: space["BYTES"].append(1),
                lambda: space["NAMES"].symmetric_difference_update({"three"}),
                lambda: space["DEQUE"].rotate(),
                lambda: space["DEQUE"].append(1),
                lambda: space["TABLE"].update(a=space["TABLE"].pop("a", 1)),
                lambda: space["LAYERS"][1].table.update({self.chance.randrange(9): 1}),
                lambda: (
                    space["LAYERS"][2].parts.append(self.value())
                    if type(space["LAYERS"][2].parts) is list
                    else None
                ),
                lambda: space["SOURCE"].random(),
                lambda: LATELY.set(self.chance.randrange(3)),
                lambda: (
                    space["HOST"].__setitem__(0, self.chance.randrange(3))
                    if type(space["HOST"]) is np.ndarray
                    else None
                ),
                lambda: space.update(PAIR=(*space["PAIR"], 3)),
                lambda: space.update(PAIR=space["PAIR"][:2]),
            ]
        )()

    def weight(self):
        """Bind an array that looks the same, or have one look otherwise."""
        layer = self.chance.choice(self.space["LAYERS"])
        old = vars(layer).get("weight")
        if type(old) is self.array and self.chance.random() < 0.5:
            shape, old.shape = old.shape, (self.chance.randrange(3),)
            self.undone.append(lambda: setattr(old, "shape", shape))
        else:
            layer.weight = self.array(2)
            self.undone.append(lambda: setattr(layer, "weight", old))

    def grown(self):
        """Give a class or function what only its like is looked at for."""
        thing = self.chance.choice([self.space["Layer"], self.space["first"]])
        name = "__later__" if thing is self.space["Layer"] else "__wrapped__"
        setattr(thing, name, self.space["helper"])
        self.undone.append(lambda: _forget(thing, name))

    def kind(self):
        """Have an object be of another class, or a class have another base."""
        space = self.space
        layer = self.chance.choice(space["LAYERS"])
        old = type(layer)
        layer.__class__ = self.chance.choice([space["Layer"], space["Other"]])
        self.undone.append(lambda: setattr(layer, "__class__", old))

    def code(self):
        """Have a function be another one."""
        helper = self.space["helper"]
        old = helper.__defaults__, helper.__kwdefaults__, helper.__code__
        cell = self.space["first"].__closure__[0]
        held = cell.cell_contents
        self.chance.choice(
            [
                lambda: setattr(helper, "__defaults__", (self.value(),)),
                lambda: setattr(helper, "__kwdefaults__", {"scale": self.value()}),
                lambda: setattr(helper, "__code__", helper.__code__.replace()),
                lambda: setattr(cell, "cell_contents", self.value()),
            ]
        )()
        self.undone.append(lambda: setattr(cell, "cell_contents", held))
        names = "__defaults__", "__kwdefaults__", "__code__"
        self.undone.append(lambda: [*map(setattr, [helper] * 3, names, old)])


def _forget(thing, name):
    with contextlib.suppress(AttributeError):
        delattr(thing, name)


def _arguments(space, array, chance):
    """Return arguments as they may come, arrays in a nest among them."""
    given = {"x": array(chance.randrange(3))}
    if chance.random() < 0.7:
        given["states"] = [array(2), {"h": array(1), "n": chance.randrange(2)}]
    given["call"] = space["first"]
    given["thing"] = space["LAYERS"][chance.random() < 0.1]
    if chance.random() < 0.1:
        given["thing"] = chance.choice([None, object(), Config(), 1.5])
    return given | ({"n": chance.randrange(300)} if chance.random() < 0.5 else {})


def _insides(found):
    """Return all that a survey holds, values by identity."""
    walk = found._walk
    return (
        [(id(n.value), n.path, n.frozen, n.accessors, n.covered) for n in walk.nodes],
        [(n.parent, n.step, n.given) for n in walk.nodes],
        [(inside.node, id(inside.view), inside.lacks) for inside in walk.insides],
        [
            [(r.key, r.role, r.frozen, r.node) for r in inside.rows]
            for inside in walk.insides
        ],
        [id(r.value) for i in walk.insides for r in i.rows if r.role != "constant"],
        walk.reach.size(),
    )


def steps_until_different(seed, array, arrays, *, turns=TURNS):
    """Return after how many turns a survey was not a new walk's; None: never."""
    chance = random.Random(seed)
    space = _world(array)
    writer, fn = Writer(space, array, chance), space["fn"]
    surveyor = Surveyor(lambda: fn, arrays)
    pairs = []
    for turn in range(turns):
        if turn % 3 == 2:
            writer.write()
        arguments = _arguments(space, array, chance)
        found, fresh = surveyor.survey(arguments), survey(fn, arguments, arrays)
        if _insides(found) != _insides(fresh) or found.key != fresh.key:
            return turn
        if {*map(id, found.arrays())} != {*map(id, fresh.arrays())}:
            return turn
        pairs.append((found, fresh))
        (was, then), pairs = chance.choice(pairs), pairs[-3:]
        if _texts(found, was) != _texts(fresh, then):
            return turn
        if chance.random() < 0.3:
            pairs.clear()
    return None


def _texts(now, then):
    return [(c.path, c.text, type(c)) for c in now.changes_since(then)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_survey_is_what_a_new_walk_finds(seed, array, arrays):
    """Slots, key, arrays and changes are those that walking anew would have found."""
    assert steps_until_different(seed, array, arrays) is None


@pytest.mark.deep
@pytest.mark.parametrize("mutant", SURVEY_MUTANTS, ids=lambda mutant: mutant.name)
@pytest.mark.deep
def test_every_mutant_is_caught(mutant, array, arrays, capsys):
    """Under every seed; the turns to detection are printed."""

    def run(seed):
        return steps_until_different(seed, array, arrays, turns=5 * TURNS)

    steps = steps_under(mutant.name, mutant.patch, SEEDS, run)
    with capsys.disabled():
        sys.stdout.write(f"\n{mutant.name}: caught after {steps} turns")


def _function(thing):
    return lambda x: (thing.weight, thing.rate, thing.parts, x)


def test_guards_of_the_same_values_are_shared(array, arrays):
    """The same used arrays have the same guards; others have guards of their own."""
    thing = types.SimpleNamespace(weight=array(2), rate=0.5, parts=[array(3)])
    fn = _function(thing)
    surveyor = Surveyor(lambda: fn, arrays)
    surveys = [surveyor.survey({"x": array(n)}) for n in range(5)]
    guards = [each.guards(lambda a: a is thing.weight) for each in surveys]
    assert all(each == guards[0] for each in guards)
    assert guards[0] is guards[4]
    assert surveys[4].guards(lambda _: True) != guards[4]
    thing.weight = array(2)
    assert surveyor.survey({"x": 1}).guards(lambda _: True).match() == [
        thing.weight,
        thing.parts[0],
    ]


def test_a_surveyor_keeps_nothing_alive(array, arrays):
    """What a function reached is gone when nobody else has it."""
    thing = Holder()
    thing.weight, thing.rate, thing.parts = array(2), 0.5, [Holder()]
    fn = _function(thing)
    surveyor = Surveyor(lambda: fn, arrays)
    for _ in range(4):
        surveyor.survey({"x": array(1), "more": [array(2)]})
    seen = [weakref.ref(thing.weight), weakref.ref(thing.parts[0])]
    thing.weight, thing.parts = None, []
    assert [reference() for reference in seen] == [None, None]


class Holder:
    """Holds anything."""


def _as_walked(surveyor, fn, arguments, arrays):
    found, fresh = surveyor.survey(arguments), survey(fn, arguments, arrays)
    return _insides(found) == _insides(fresh) and found.key == fresh.key


def test_things_that_become_one_are_one(arrays):
    """Two lists alike that become one, and a function that is not the passed one."""
    thing = types.SimpleNamespace(one=[1], two=[1], call=None)

    def call():
        return thing.one

    def fn(given):
        return given, thing.one, thing.two, thing.call

    thing.call = call
    surveyor = Surveyor(lambda: fn, arrays)
    for _ in range(3):
        assert _as_walked(surveyor, fn, {"given": call}, arrays)
    kept, thing.two = thing.two, thing.one
    assert _as_walked(surveyor, fn, {"given": call}, arrays)
    thing.two = kept
    assert _as_walked(surveyor, fn, {"given": call}, arrays)
    thing.call = types.FunctionType(
        call.__code__, call.__globals__, "call", None, call.__closure__
    )
    assert _as_walked(surveyor, fn, {"given": call}, arrays)
