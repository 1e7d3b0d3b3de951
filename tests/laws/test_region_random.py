"""Programs at random, with regions at random in them: as NumPy has it, whatever."""

from __future__ import annotations

import random

import pytest

import sapwood as sw

pytestmark = pytest.mark.every_kind

LENGTH = 6
KINDS = ("mix", "view", "add", "bind", "alias", "read", "live", "live", "live")
RESULTS = ("nothing", "new", "same", "view", "both")


def draw_plan(chance, arguments):
    """Return the steps of a program, as plain values; each may use all before it."""
    count, plan = arguments, []
    for _ in range(chance.randint(4, 10)):
        kind = chance.choice(KINDS)
        i, j = chance.randrange(count), chance.randrange(count)
        result = chance.choice(RESULTS)
        plan.append((kind, i, j, result, chance.random() < 0.3))
        count += {"mix": 1, "view": 1, "read": 1}.get(kind, 0)
        if kind == "live":
            count += {"nothing": 0, "both": 2}.get(result, 1)
    shown = [chance.randrange(count) for _ in range(chance.randint(1, 3))]
    return tuple(plan), tuple(shown)


def what_lives(i, j, result, kept):
    """Return the eager region's result; it writes its arguments, and may keep one."""
    total = float(i[0])
    i += 0.25 * (total > 0)
    j *= 0.5
    if kept is not None:
        kept.append(i)
        del kept[:-2]
    new = i * 0.5 - j
    given = {"new": (new,), "same": (j,), "view": (i[::-1],), "both": (new, i)}
    return given.get(result)


def _mix(values, i, j, _):
    values.append(values[i] * 0.5 + values[j] * 0.25)


def _view(values, i, _, __):
    values.append(values[i][::-1])


def _add(values, i, _, own):
    values[i] += own["w"] * 0.5


def _bind(values, i, _, own):
    own["s"] = values[i] * 0.75


def _alias(values, i, _, own):
    own["s"] = values[i]


def _read(values, _, __, own):
    values.append(own["s"] - own["w"])


RECORDED = {
    "mix": _mix,
    "view": _view,
    "add": _add,
    "bind": _bind,
    "alias": _alias,
    "read": _read,
}


def make_function(plan, shown, own, kept):
    """Return a function that does what is planned."""

    @sw.eager
    def live(i, j, result, *, keeps):
        return what_lives(i, j, result, kept if keeps else None)

    def fn(*args):
        values = list(args)
        for kind, i, j, result, keeps in plan:
            if kind == "live":
                values += live(values[i], values[j], result, keeps=keeps) or ()
            else:
                RECORDED[kind](values, i, j, own)
        return tuple(values[i] for i in shown)

    return fn


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(16))
def test_programs_agree(agree, seed):
    """Every array that anybody has is as in NumPy, after every call."""

    def program(w):
        chance, kept, held = random.Random(seed), [], []
        count = chance.randint(1, 3)
        plan, shown = draw_plan(chance, count)
        own = {"s": w.values(LENGTH), "w": w.values(LENGTH)}
        fn = make_function(plan, shown, own, kept)
        f = w.graph(fn, max_variants=chance.choice((1, 4)))
        lasting = [w.values(LENGTH) for _ in range(count)]
        for _ in range(9):
            args = [x if chance.random() < 0.6 else w.values(LENGTH) for x in lasting]
            held.append(f(*args))
            if chance.random() < 0.3:
                last = chance.choice(held[-1])
                last *= 0.5
            yield args, lasting, held, kept, own
            while len(held) > chance.randrange(5):
                held.pop(chance.randrange(len(held)))

    agree(program)
