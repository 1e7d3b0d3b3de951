# ruff: noqa: ARG005 - the functions of a table are called alike
"""Programs at random, with eager regions that change what there is: right, or refused.

Programs are plain values, drawn before they run. What replays cannot do is refused by
name; then all worlds start anew, with the same functions.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import pytest

import sapwood as sw

LENGTH = 6
CALLS = 12


class Step(NamedTuple):
    """One step of a function; those before it give what ``i`` and ``j`` count.

    An eager region of ``kind`` "live" has a result and an action, which is done at the
    calls that ``when`` tells: every so many, beginning with which.
    """

    kind: str
    i: int
    j: int
    slot: str
    result: str = ""
    action: str = ""
    when: tuple[int, int] = (1, 0)


class Call(NamedTuple):
    """One call: where its arguments are from, and what its caller does behind it."""

    x: str
    y: str
    box: bool
    depth: int
    after: str
    pick: int
    drop: int


class Plan(NamedTuple):
    """A program: the steps of two functions, the calls, and what the function gives."""

    steps: tuple[Step, ...]
    inner: tuple[Step, ...]
    calls: tuple[Call, ...]
    shown: tuple[int, ...]
    options: dict[str, Any]


def least(a, b):
    """Return as much of two arrays as both have."""
    n = min(len(a), len(b))
    return a[:n], b[:n]


def mixed(a, b):
    """Return a new array of two."""
    a, b = least(a, b)
    return a * 0.5 + b * 0.25


def write(a, b):
    """Write one array, in place, by another."""
    a, b = least(a, b)
    a += b * 0.5


# Each gets the values so far, two of them, a slot's name, and what the function has.


def _of_box(box, slot):
    return box["l"][0] if slot == "s" else box["x"]


def _bind_box(values, a, b, slot, own, box):
    del values, b, own
    if slot == "s":
        box["l"][0] = a
    else:
        box["x"] = a


def _chosen(values, a, b, own):
    values.append(a if own["k"] else b)


def _worked(values, a, b, own):
    values.append(a * 2.0 if own["k"] else mixed(a, b))


TAKEN = {
    "mix": lambda v, a, b, s, own, box: v.append(mixed(a, b)),
    "turn": lambda v, a, b, s, own, box: v.append(a[::-1]),
    "tail": lambda v, a, b, s, own, box: v.append(a[1:] if len(a) > 3 else a),
    "write": lambda v, a, b, s, own, box: write(a, b),
    "write slot": lambda v, a, b, s, own, box: write(own[s], a),
    "bind": lambda v, a, b, s, own, box: own.update({s: a * 0.75}),
    "alias": lambda v, a, b, s, own, box: own.update({s: a}),
    "view": lambda v, a, b, s, own, box: own.update({s: a[::-1]}),
    "swap": lambda v, a, b, s, own, box: own.update(s=own["t"], t=own["s"]),
    "read": lambda v, a, b, s, own, box: v.append(own[s]),
    "use": lambda v, a, b, s, own, box: v.append(mixed(own[s], own["w"])),
    "chosen": lambda v, a, b, s, own, box: _chosen(v, a, b, own),
    "worked": lambda v, a, b, s, own, box: _worked(v, a, b, own),
    "is": lambda v, a, b, s, own, box: v.append(a * 2.0 if a is b else b * 3.0),
    "holds": lambda v, a, b, s, own, box: v.append(a if own[s] is a else a * 0.5),
    "one": lambda v, a, b, s, own, box: v.append(a if own["s"] is own["t"] else b),
    "box": lambda v, a, b, s, own, box: v.append(_of_box(box, s)),
    "box times": lambda v, a, b, s, own, box: v.append(a * box["k"]),
    "bind box": _bind_box,
    "box holds": lambda v, a, b, s, own, box: v.append(a if box["x"] is a else b * 2.0),
}

GIVEN = {
    "nothing": lambda h, i, j, pair, slot: None,
    "new": lambda h, i, j, pair, slot: (mixed(i, j),),
    "same": lambda h, i, j, pair, slot: (j,),
    "it": lambda h, i, j, pair, slot: i,
    "view": lambda h, i, j, pair, slot: (i[::-1],),
    "both": lambda h, i, j, pair, slot: (mixed(i, j), i),
    "twice": lambda h, i, j, pair, slot: [mixed(i, j)] * 2,
    "pair": lambda h, i, j, pair, slot: pair,
    "nest": lambda h, i, j, pair, slot: {"p": pair[0], "q": (pair[1], pair[0])},
    "hidden": lambda h, i, j, pair, slot: h.hidden["h"],
    "slice": lambda h, i, j, pair, slot: (h.hidden["slices"][2],),
    "big": lambda h, i, j, pair, slot: h.hidden["big"],
    "slot": lambda h, i, j, pair, slot: (h.own[slot],),
    "slots": lambda h, i, j, pair, slot: (h.own["s"], h.own["t"]),
    "box": lambda h, i, j, pair, slot: (h.box["x"],),
    "called": lambda h, i, j, pair, slot: h.other(i, j),
    "view of hidden": lambda h, i, j, pair, slot: h.hidden["h"][::-1],
}


def _keep(h, i):
    h.kept.append(i)
    del h.kept[:-2]


ACTIONS = {
    "nothing": lambda h, i, j, slot: None,
    "write": lambda h, i, j, slot: write(i, j),
    "write hidden": lambda h, i, j, slot: write(h.hidden["h"], j),
    "write slot": lambda h, i, j, slot: write(h.own[slot], i),
    "write box": lambda h, i, j, slot: write(h.box["x"], i),
    "keep": lambda h, i, j, slot: _keep(h, i),
    "hide": lambda h, i, j, slot: h.hidden.update(h=i),
    "hide a slot": lambda h, i, j, slot: h.hidden.update(h=h.own[slot]),
    "hide a slice": lambda h, i, j, slot: h.hidden.update(h=h.hidden["slices"][1]),
    "hide what is new": lambda h, i, j, slot: h.hidden.update(h=i * 1.5),
    "bind": lambda h, i, j, slot: h.own.update({slot: i}),
    "bind what is new": lambda h, i, j, slot: h.own.update({slot: i * 1.5}),
    "bind what is hidden": lambda h, i, j, slot: h.own.update({slot: h.hidden["h"]}),
    "bind a slice": lambda h, i, j, slot: h.own.update({slot: h.hidden["slices"][3]}),
    "bind a view": lambda h, i, j, slot: h.own.update({slot: i[::-1]}),
    "swap": lambda h, i, j, slot: h.own.update(s=h.own["t"], t=h.own["s"]),
    "unify": lambda h, i, j, slot: h.own.update(s=h.own["t"]),
    "flip": lambda h, i, j, slot: h.own.update(k=not h.own["k"]),
    "box": lambda h, i, j, slot: h.box.update(x=h.hidden["h"]),
    "box a value": lambda h, i, j, slot: h.box.update(k=h.box["k"] + 1.0),
    "box more": lambda h, i, j, slot: h.box["l"].append(i),
    "box a slot": lambda h, i, j, slot: h.box["l"].__setitem__(0, h.own[slot]),
    "call": lambda h, i, j, slot: h.other(i, j),
}

AND_DONATED = {"", "nothing", "write", "write slot", "bind what is new", "flip", "call"}
BINDS = {"alias", "view", "bind box"}


def draw_step(chance, kinds):
    """Return a step; about as many are eager regions as are not."""
    kind = chance.choice(kinds)
    i, j, slot = chance.randrange(20), chance.randrange(20), chance.choice("sstw")
    if kind != "live":
        return Step(kind, i, j, slot)
    result = chance.choice(["nothing", *GIVEN])
    action = chance.choice(["nothing"] * 10 + [*ACTIONS])
    every = chance.choice((1, 1, 5, 7))
    when = (every, chance.randrange(every))
    return Step(kind, i, j, slot, result, action, when)


def draw_call(chance):
    """Return a call as any program may do it."""
    x = chance.choice(["lasting"] * 4 + ["new"] * 4 + [*ARGUMENTS])
    y = chance.choice(["lasting"] * 6 + ["new"] * 2 + [*ARGUMENTS])
    depth = int(chance.random() < 0.1)
    after = chance.choice(["nothing"] * len(AFTERWARDS) + [*AFTERWARDS])
    pick, drop = chance.randrange(20), chance.randrange(5)
    return Call(x, y, chance.random() < 0.5, depth, after, pick, drop)


def draw(seed):
    """Return the plan of a program."""
    chance = random.Random(seed)
    # Few kinds at a time, so that they meet.
    some = chance.sample([*TAKEN], chance.randint(2, 6))
    more = ["live"] * chance.randint(2, len(some) + 1)
    kinds = [*some, *more, *chance.choice(([], [], ["inner"], ["itself"]))]
    steps = [draw_step(chance, kinds) for _ in range(chance.randint(3, 8))]
    inner = [draw_step(chance, [*some, "live"]) for _ in range(chance.randint(1, 3))]
    one, steady = draw_call(chance), chance.choice((0.2, 0.8, 0.9))
    calls = [
        one if chance.random() < steady else draw_call(chance) for _ in range(CALLS)
    ]
    shown = [chance.randrange(20) for _ in range(chance.randint(1, 3))]
    options = {"max_variants": chance.choice((1, 4, 4))}
    both = [*steps, *inner]
    if chance.random() < 0.3 and {each.action for each in both} <= AND_DONATED:
        # Whether a slot still shows what was donated is another question.
        steps, inner = (
            [e for e in each if e.kind not in BINDS] for each in (steps, inner)
        )
        options["donate"] = ("x",)
    return Plan(tuple(steps), tuple(inner), tuple(calls), tuple(shown), options)


ARGUMENTS = {
    "lasting": lambda h, k: h.lasting[k],
    "new": lambda h, k: h.w.values(LENGTH),
    "short": lambda h, k: h.w.values(LENGTH - 2),
    "part": lambda h, k: h.w.values(LENGTH + 4)[1 : 1 + LENGTH],
    "slice": lambda h, k: h.hidden["slices"][0],
    "other slice": lambda h, k: h.hidden["slices"][4],
    "slot": lambda h, k: h.own["s"],
    "hidden": lambda h, k: h.hidden["h"],
    "held": lambda h, k: h.arrays()[-1],
    "first": lambda h, k: h.lasting[0],
}

AFTERWARDS = {
    "write": lambda h, a: write(a, h.own["w"]),
    "write slot": lambda h, a: write(h.own["s"], a),
    "bind": lambda h, a: h.own.update(s=a),
    "bind what is hidden": lambda h, a: h.own.update(t=h.hidden["h"]),
    "bind what is new": lambda h, a: h.own.update(s=h.w.values(LENGTH)),
    "unify": lambda h, a: h.own.update(t=h.own["s"]),
    "flip": lambda h, a: h.own.update(k=not h.own["k"]),
    "hide": lambda h, a: h.hidden.update(h=a),
    "hide what is new": lambda h, a: h.hidden.update(h=h.w.values(LENGTH)),
    "hide an argument": lambda h, a: h.hidden.update(h=h.lasting[0]),
    "large": lambda h, a: h.large(),
    "hide a slot": lambda h, a: h.hidden.update(h=h.own["s"]),
}


def arrays_in(nest):
    """Return the arrays of a nest, in order."""
    if isinstance(nest, dict):
        nest = list(nest.values())
    if isinstance(nest, (list, tuple)):
        return [array for each in nest for array in arrays_in(each)]
    return [nest] if hasattr(nest, "dtype") else []


class Hands:
    """All that a program has in one world."""

    def __init__(self, plan, w):
        self.plan, self.w, self.call = plan, w, 0
        self.own, self.other = {}, None
        self.other = w.graph(lambda a, b: (mixed(a, b), a))
        self.f = self._function()
        self.start()

    def start(self):
        """Begin with new arrays, by the number of the call."""
        w = self.w
        w.rng = np.random.default_rng(self.call)
        self.own.update({name: w.values(LENGTH) for name in "stw"}, k=True)
        self.hidden = {"h": w.values(LENGTH)}
        self.large()
        self.lasting = [w.values(LENGTH), w.values(LENGTH)]
        self.kept, self.held = [], []
        self.box = self._new_box()

    def large(self):
        """Hide a larger array, and slices of it."""
        big = self.w.values(LENGTH + 4)
        slices = [big[:LENGTH], big[1:7], big[2:8], big[3:9], big[4:]]
        self.hidden.update(big=big, slices=slices)

    def _new_box(self):
        return {"x": self.w.values(LENGTH), "l": [self.w.values(LENGTH)], "k": 2.0}

    def arrays(self):
        """Return what results there are, or an argument."""
        return [self.lasting[1], *arrays_in(self.held)]

    def _function(self):
        plan, own, w = self.plan, self.own, self.w
        live = self._live()

        def run(steps, values, box, depth):
            for number, step in enumerate(steps):
                a, b = values[step.i % len(values)], values[step.j % len(values)]
                if step.kind == "live":
                    inside = steps is plan.inner
                    values += arrays_in(live([a, b], number, inside=inside))
                elif step.kind == "inner":
                    values += inner(a, b, box)
                elif step.kind == "itself":
                    values += f(a, b, box, depth - 1) if depth else ()
                else:
                    TAKEN[step.kind](values, a, b, step.slot, own, box)
            return values

        @w.graph
        def inner(x, y, box):
            return run(plan.inner, [x, y], box, 0)[-1:]

        @w.graph(**plan.options)
        def f(x, y, box, depth):
            values = run(plan.steps, [x, y], box, depth)
            return [values[i % len(values)] for i in plan.shown]

        return f

    def _live(self):
        @sw.eager
        def live(pair, number, *, inside):
            step = (self.plan.inner if inside else self.plan.steps)[number]
            every, first = step.when
            if self.call % every == first:
                ACTIONS[step.action](self, *pair, step.slot)
            return GIVEN[step.result](self, *pair, pair, step.slot)

        return live

    def run(self, call):
        """Do a call; return the arguments."""
        args = [ARGUMENTS[call.x](self, 0), ARGUMENTS[call.y](self, 1)]
        if call.box:
            self.box = self._new_box()
        if "donate" in self.plan.options:
            args[0] = self.w.values(LENGTH)
        self.held.append(self.f(*args, self.box, call.depth))
        arrays = self.arrays()
        if call.after in AFTERWARDS:
            AFTERWARDS[call.after](self, arrays[-1 - call.pick % len(arrays)])
        return args["donate" in self.plan.options :]

    def shown(self, args):
        """Return all that is to be the same in all worlds."""
        nest = args, self.held, self.kept, self.own, self.hidden, self.box, self.lasting
        ids = [*map(id, arrays_in(nest))]
        return nest, [ids.index(each) for each in ids]


def rehearse(plan, refused):
    """Return a program; calls that the first world refuses are ``refused`` for all."""

    def program(w):
        hands = Hands(plan, w)
        for hands.call, call in enumerate(plan.calls):
            args = ()
            try:
                args = hands.run(call)
            except sw.CaptureError:
                if not w.replayed:
                    raise
                refused.add(hands.call)
            if hands.call in refused:
                for array in arrays_in(hands.shown(())):
                    np.asarray(array)
                args = ()
                hands.start()
            yield hands.shown(args)
            while len(hands.held) > call.drop:
                hands.held.pop(call.pick % len(hands.held))

    return program


@pytest.mark.parametrize("seed", range(10))
def test_programs_that_may_be_refused(agree, seed):
    """A refused call changes nothing for those to come; no other is ever wrong."""
    refused = set()
    plan = draw(seed)
    plan.options["fullgraph"] = True
    world = agree(rehearse(plan, refused), first="replayed")
    assert world.count("warmups") > 0 or refused


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("seed", range(10))
def test_programs_that_may_skip(agree, seed):
    """Unless ``fullgraph=True`` such a call does what the plain function does."""
    refused = set()
    world = agree(rehearse(draw(seed), refused), first="replayed")
    assert world.count("warmups") + world.count("passed_through") > 0
