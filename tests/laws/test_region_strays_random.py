"""Regions that do at random what they have not done before: as an eager call does.

A function reads and writes on both sides of its regions what these change in a call
now and then: values, lists, dicts, attributes, arrays, arguments, results.
"""

from __future__ import annotations

import random
from operator import iadd, imul, setitem
from types import SimpleNamespace

import pytest

import sapwood as sw

pytestmark = pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")

CALLS = 16
ALWAYS = ("half the weight", "add to the argument", "half what is passed")
READS = {
    "rate": lambda s, _, __, h: h * s.rate,
    "log": lambda s, _, __, h: h + len(s.log) + sum(s.log),
    "table": lambda s, _, __, h: h + sum(s.table.values()) + len(s.table),
    "weight": lambda s, _, __, h: h + s.weight,
    "offset": lambda s, _, __, h: h - s.offset,
    "name": lambda s, _, __, h: h * 0.5 + getattr(s, "extra", 1.0),
    "nest": lambda _, __, nest, h: h + sum(getattr(nest, "values", nest.copy)()),
}
RESULTS = {
    "nothing": lambda *_: None,
    "same": lambda h, _: h,
    "new": lambda h, _: h * 2,
    "a number": lambda _, number: number * number % 3,
    "a flag and an array": lambda h, number: (number % 4 < 2, h * 2),
}


def draw_plan(chance):
    """Return the steps before and behind each region, and what each of them does."""
    steps = [*READS, "write", "bind", "argument"]
    parts = [chance.choices(steps, k=chance.randint(1, 4)) for _ in range(4)]
    regions = []
    for _ in range(chance.randint(1, 3)):
        always = [each for each in ALWAYS if chance.random() < 0.2]
        rare = {}
        for _ in range(chance.randint(0, 2)):
            call = chance.randrange(CALLS)
            rare.setdefault(call, []).append(chance.choice([*ACTS]))
        regions.append((always, rare, chance.choice([*RESULTS]), chance.random() < 0.3))
    return parts, regions


class State:
    """What a program has: its own, and what its call in progress was passed."""

    def __init__(self, w):
        self.rate, self.log, self.table = 2.0, [1.0], {"a": 1.0}
        self.weight, self.offset = w.values(4), w.values(4)
        self.given = SimpleNamespace(x=None, nest=None)


ACTS = {
    "half the weight": lambda t: imul(t.s.weight, 0.5),
    "add to the argument": lambda t: iadd(t.s.given.x, 1),
    "half what is passed": lambda t: imul(t.h, 0.5),
    "raise the rate": lambda t: vars(t.s).update(rate=t.s.rate + 1),
    "append": lambda t: t.s.log.append(float(t.number)),
    "pop": lambda t: t.s.log and t.s.log.pop(),
    "set a key": lambda t: t.s.table.update({f"{t.number}": float(t.number)}),
    "pop a key": lambda t: t.s.table and t.s.table.pop(next(iter(t.s.table))),
    "set a name": lambda t: vars(t.s).update(extra=float(t.number)),
    "bind the weight": lambda t: vars(t.s).update(weight=t.w.values(4)),
    "bind the offset": lambda t: vars(t.s).update(offset=t.w.values(4)),
    "fill the box": lambda t: None if t.box is None else t.box.append(t.h),
    "grow the argument": lambda t: (
        t.s.given.nest.update(z=2.0)
        if isinstance(t.s.given.nest, dict)
        else t.s.given.nest.append(2.0)
    ),
    "change the argument": lambda t: setitem(
        t.s.given.nest, "b" if isinstance(t.s.given.nest, dict) else 0, 9.0
    ),
    "return less": lambda _: None,
}


def make_region(w, s, plan):
    """Return an eager region, and a list that has as many items as it has run."""
    (always, rare, result, _), ran = plan, []

    @sw.eager
    def region(h, box=None):
        acts = *always, *rare.get(len(ran), ())
        for what in acts:
            ACTS[what](SimpleNamespace(w=w, s=s, number=len(ran), h=h, box=box))
        ran.append(h)
        if "return less" in acts:
            return h[:-1] * 2
        return RESULTS[result](h, len(ran))

    return region, ran


def taken_in(h, got):
    """Go by what a region has returned."""
    flag, *arrays = got if isinstance(got, tuple) else (got,)
    if isinstance(flag, int):
        h = h + 1 if flag else h * 0.5
    elif flag is not None:
        h = h + flag.sum()
    return h + sum(each.sum() for each in arrays)


def make_function(s, parts, regions, boxed):
    """Return a function of an array and a nest."""

    def part(steps, x, nest, h):
        for step in steps:
            if step == "write":
                s.weight += h
            elif step == "bind":
                s.offset = h * 2
            elif step == "argument":
                x *= 0.5
            else:
                h = READS[step](s, x, nest, h)
        return h

    def fn(x, nest):
        shown, h = [], part(parts[0], x, nest, x + 1)
        for region, in_box, steps in zip(regions, boxed, parts[1:], strict=False):
            box = [h]
            got = region(h, box) if in_box else region(h)
            shown.append(box)
            if got is not None:
                shown.append(got)
            h = taken_in(h, got)
            h = part(steps, x, nest, h)
        return h, shown

    return fn


@pytest.mark.every_framework
@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(24))
def test_it_is_as_an_eager_call(agree, seed):
    """Whatever regions do of a sudden; each runs once a call, and nothing raises."""

    def program(w):
        chance = random.Random(seed)
        parts, plans = draw_plan(chance)
        s, as_dict = State(w), chance.random() < 0.5
        made = [make_region(w, s, plan) for plan in plans]
        regions, ran = zip(*made, strict=True)
        f = w.graph(make_function(s, parts, regions, [plan[-1] for plan in plans]))
        kept = []
        for _ in range(CALLS):
            s.given.nest = {"b": 1.0, "c": 2.0} if as_dict else [1.0, 2.0]
            s.given.x = w.values(4)
            kept.append(f(s.given.x, s.given.nest))
            own = {name: each for name, each in vars(s).items() if name != "given"}
            yield kept[-2:], s.given.x, s.given.nest, own, [*map(len, ran)]

    agree(program)
