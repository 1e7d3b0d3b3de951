"""What a function writes in Python and takes back, around the values that it reads.

A read of a value runs nobody's code: what is written by then, and back when the call is
over, nobody has seen. What a recording shows, and what a call leaves that goes another
way than all recordings, are an eager call's.
"""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pytest

import sapwood as sw
from tests.support import unseen

pytestmark = [
    pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning"),
    pytest.mark.every_framework,
]

CALLS = 14


def _found():
    return {"stage": 0, "found": {}}


class Scaler:
    """Notes for a step what it has found, as scalers of losses do."""

    def __init__(self, w):
        self.scale, self.steps = w.values(1), defaultdict(_found)
        self.depth, self.kept, self.list = 0, w.values(4), []
        self.same = [self.kept]


def _steps(s, h):
    """Have notes made of a step, and thrown away behind it."""
    step = s.steps[7]
    step["found"] = {"here": (h > 3).sum() * 1.0}
    step["stage"] = 1
    if not sum(float(each) for each in step["found"].values()):
        h = h * s.scale
    step["stage"] = 2
    s.scale *= 0.5
    s.steps = defaultdict(_found)
    return h


def _counts(s, h):
    """Count how deep a call is, up and down again."""
    s.depth += 1
    if float(h.sum()) > 4:
        s.depth += 1
        h = h * s.depth if float(h[0]) > 1 else h + s.depth
        s.depth -= 1
    s.depth -= 1
    return h


def _binds(s, h):
    """Bind an array before a value is read, and read it behind that."""
    s.kept = h + 1
    if float(s.kept.sum()) > 8:
        s.kept = s.kept * 2
    return h - s.kept


def _borrows(s, h):
    """Put another array in a slot for a while."""
    was, s.kept = s.kept, h * 2
    more = float(s.kept[0]) > 2
    h = h + s.kept
    s.kept = was
    return h + was if more else h


def _fills(s, h):
    """Fill a list with arrays, and empty it again."""
    s.list.append(h * 2)
    while float(s.list[-1].sum()) > 6:
        s.list.append(s.list[-1] * 0.5)
    while s.list:
        h = h + s.list.pop()
    return h


def _two_ways(s, h):
    """Write an array that two ways lead to, and go on with it."""
    first = s.kept
    first += h
    if float(h.sum()) > 4:
        h = h + first
    s.same[0] *= 0.5
    return h - first


def _raises(s, h):
    """Raise where nothing is taken back any more."""
    s.depth += 1
    if float(h[0]) > 2:
        raise ValueError
    s.depth -= 1
    return h * 2


@pytest.mark.parametrize(
    "part",
    [_steps, _counts, _binds, _borrows, _fills, _two_ways, _raises],
    ids=lambda x: x.__name__,
)
@pytest.mark.parametrize("region", [None, "in front", "behind"])
def test_what_is_written_around_a_read(agree, part, region):
    """In front of an eager region, and behind it, too."""

    def program(w):
        s, kept, seen = Scaler(w), [], []

        @sw.eager
        def live(h):
            seen.append((s.depth, len(s.list), len(s.steps)))
            h += 1

        def fn(x):
            h = x * 2
            if region == "in front":
                live(h)
            h = part(s, h)
            if region == "behind":
                live(h)
            return h + 1

        f = w.graph(fn)
        for i in range(CALLS):
            x = w.array(np.array([0.0, 0.5, 1.0, 1.5]) + i % 3 * 0.75)
            try:
                kept.append(f(x))
            except ValueError:
                s.depth, left = 0, s.depth
                yield left
            yield kept[-3:], s.kept, s.scale, s.depth, len(s.list), seen[-1:]
        yield kept, len(seen)

    agree(program)


class Sealed:
    """What nobody takes apart: it says itself how it is copied."""

    def __init__(self, array):
        self.array = array

    def __reduce__(self):
        return Sealed, (self.array,)


@pytest.mark.parametrize("part", [_steps, _counts, _binds, _borrows, _fills, _two_ways])
def test_what_is_written_around_a_read_in_vain(agree, part):
    """A recording of which nothing comes leaves no array of its own."""

    def program(w):
        s, kept = Scaler(w), []
        f = w.graph(lambda x: Sealed(part(s, part(s, x * 2))))
        for i in range(8):
            kept.append(f(w.array(np.full(4, float(i % 2)))).array)
            yield kept[-3:], s.kept, s.scale, s.depth, len(s.list), len(s.steps)
        yield kept

    agree(program)


def test_what_is_written_around_a_read_is_recorded(rt):
    """Such calls are replays, whichever way they go."""

    class Values:
        def values(self, size):
            return rt.array(np.ones(size))

    s = Scaler(Values())
    f = rt.graph(lambda x: _two_ways(s, _counts(s, _steps(s, x * 2))))
    for i in range(24):
        before = f.stats().replays
        f(rt.array(np.full(4, float(i % 3))))
    assert f.stats().replays == before + 1


STEPS = {
    "deeper": lambda s, h: (setattr(s, "depth", s.depth + 1), h)[1],
    "higher": lambda s, h: (setattr(s, "depth", s.depth - 1), h)[1],
    "by depth": lambda s, h: h * 0.5 + s.depth,
    "note": lambda s, h: (s.steps[len(s.steps)].update(stage=s.depth), h)[1],
    "keep in a note": lambda s, h: (s.steps["kept"]["found"].update(a=h * 2), h)[1],
    "by notes": lambda s, h: h + sum(each["stage"] for each in s.steps.values()),
    "from a note": lambda s, h: (
        h + s.steps["kept"]["found"].get("a", 1) if "kept" in s.steps else h
    ),
    "forget": lambda s, h: (s.steps.clear(), h)[1],
    "bind": lambda s, h: (setattr(s, "kept", h * 0.5), h)[1],
    "by what is bound": lambda s, h: h - s.kept * 0.25,
    "append": lambda s, h: (s.list.append(h * 2), h)[1],
    "pop": lambda s, h: s.list.pop() * 0.5 if s.list else h,
    "write": lambda s, h: (s.scale.__imul__(0.5), h + s.scale)[1],
    "ask": lambda _, h: h * 0.5 if float(h.sum()) > 3 else h + 1,
    "ask again": lambda _, h: h - 1 if float(h[0]) > 0.5 else h * 1.5,
}
ASKS = ("ask", "ask again")
SEEDS = 60


@pytest.mark.one_in(6)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_writes_around_reads(agree, seed):
    """Whatever is written between reads, and left behind or not."""
    chance = random.Random(seed)
    plan = [chance.choice(ASKS), *chance.choices([*STEPS], k=chance.randint(3, 10))]
    plan += chance.choices(ASKS, k=2)
    chance.shuffle(plan)
    tidy, at = chance.random() < 0.7, chance.choice([None, *range(len(plan))])

    def program(w):
        s, kept, ran = Scaler(w), [], []

        @sw.eager
        def live(h):
            ran.append(s.depth)
            if len(ran) == 9:
                s.kept = s.kept * 2
            h += len(s.list)

        def fn(x):
            h, depth = x + 1, s.depth
            for k, step in enumerate(plan):
                if k == at:
                    live(h)
                h = STEPS[step](s, h)
            if tidy:
                s.depth = depth
                s.steps.clear()
                s.list.clear()
            return h

        f, turn = w.graph(fn), random.Random(seed)
        for _ in range(CALLS):
            x = w.array(np.full(4, turn.choice([0.0, 0.25, 2.0])))
            kept.append(f(x))
            notes = [each["stage"] for each in s.steps.values()]
            yield kept[-3:], s.kept, s.scale, s.depth, len(s.list), notes
        yield kept, ran

    agree(program)


LEFT = {
    "a number": lambda s, _, __: setattr(s, "depth", s.depth + 3),
    "another number": lambda s, _, __: setattr(s, "depth", 7),
    "a list": lambda s, _, h: s.list.append(h * 5),
    "a dict": lambda s, _, h: s.steps["kept"]["found"].update(a=h * 5),
    "an argument": lambda _, nest, h: nest.append(h * 5),
    "an item": lambda _, nest, h: nest.__setitem__(0, nest[0] + h),
    "an exception": lambda _, __, h: _raise(h * 5),
}


class Kept(Exception):
    """Holds an array."""


def _raise(h):
    error = Kept()
    error.array = h
    raise error


@pytest.mark.parametrize("what", LEFT)
@pytest.mark.parametrize("region", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_what_a_new_way_leaves(agree, what, region, again):
    """Of what no warm-up has done, nobody has an array of a recording's, or half."""

    def program(w):
        s, kept, live = Scaler(w), [], sw.eager(lambda _: None)

        def fn(x, nest):
            if region:
                live(x)
            if float(x.sum()) > 0:
                return x * 2
            LEFT[what](s, nest, x)
            if again and float(x[0]) < -1:
                return x * 3
            return x * (s.depth + 1)

        f = w.graph(fn)
        for sign in (1, -0.2, -0.2, 1, -2, -2, 1, -0.2, -2, -0.2, 1, -2):
            x, nest = w.array(np.arange(1.0, 5) * sign), [w.values(4)]
            try:
                kept.append(f(x, nest))
            except Kept as error:
                kept.append(error.array)
            found = [each["found"].get("a") for each in s.steps.values()]
            yield kept[-4:], nest, s.depth, s.list, found

    agree(program)


@pytest.mark.parametrize("read", [False, True])
def test_what_is_filled_in_vain_is_filled_once(agree, read):
    """A call whose result nobody can open has filled its arguments but once."""

    def program(w):
        live = sw.eager(lambda _: None)

        def fn(x, given, table):
            live(x)
            given[0] = given[0] + x
            if read and float(given[0].sum()) > 100:
                x = x * 2
            table["z"] = table.get("z", 0) + x
            return Sealed(x)

        f = w.graph(fn)
        for _ in range(6):
            x, given, table = w.values(4), [w.values(4)], {}
            yield f(x, given, table).array, given, table

    agree(program)


class Book:
    """What training loops keep beside their arrays."""

    def __init__(self, w):
        self.calls, self.table, self.turn = 0, {"n": 0}, False
        self.last, self.rows, self.codes = {"h": w.values(4), "n": 0}, [], []


def _count(b, h):
    b.calls += 1
    b.table["n"] += 2
    return h


def _row(b, h):
    b.rows.append(h * 2)
    b.codes.append(7)
    return h


def _last(b, h):
    b.last = {"h": h * 2, "n": 3}
    return h


def _turn(b, h):
    b.turn = not b.turn
    return h


BOOK = {"count": _count, "row": _row, "last": _last, "turn": _turn}


@pytest.mark.parametrize("what", BOOK)
@pytest.mark.parametrize("behind", [False, True])
def test_what_is_kept_around_a_read(agree, what, behind):
    """Sums, rows, the last result and whose turn it is: each call keeps them once."""
    counts = []

    def program(w):
        b = Book(w)

        def fn(x):
            h = x * 2 if behind else BOOK[what](b, x * 2)
            if float(h.sum()) > 4:
                h = h + 1
            return BOOK[what](b, h) if behind else h

        f = w.graph(fn)
        for i in range(2 * CALLS):
            yield f(w.array(np.full(4, float(i % 2)))), b.last["h"], b.rows[-3:]
            yield b.calls, b.table, b.turn, len(b.rows), len(b.codes)
            counts.append(w.count("replays") if w.replayed else 0)

    agree(program)
    assert max(counts) >= CALLS


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(30))
def test_what_is_kept_around_reads_and_regions(agree, seed):
    """Regions that some ways come to, and others do not, append to the same lists."""
    chance = random.Random(seed)
    plan = chance.choices([*BOOK, "ask", "live"], k=chance.randint(3, 8))
    asked = [chance.choice([*BOOK, "live"]) for _ in plan]
    plan.insert(chance.randrange(len(plan)), "ask")

    def program(w):
        b, seen = Book(w), []

        @sw.eager
        def live(h):
            b.codes.append(-1)
            seen.append((b.calls, len(b.rows)))
            h += 1

        def step(name, h):
            if name == "live":
                live(h)
                return h
            return BOOK[name](b, h)

        def fn(x):
            h = x * 2
            for name, other in zip(plan, [*asked, "count"], strict=True):
                if name != "ask":
                    h = step(name, h)
                elif float(h.sum()) > 6:
                    h = step(other, h) + 1
            return h

        f, kept = w.graph(fn), []
        for _ in range(CALLS):
            kept.append(f(w.array(np.full(4, chance.choice([0.0, 0.5, 1.0])))))
            yield kept[-3:], b.last["h"], b.rows[-3:], b.codes, seen[-2:]
            yield b.calls, b.table, b.turn

        chance.seed(seed)

    chance.seed(seed)
    agree(program)


@pytest.mark.parametrize("what", ["a list", "a dict"])
def test_what_a_new_way_keeps_in_front_of_a_region(agree, what):
    """It is kept once, by the function, and not again for the region."""

    def program(w):
        b, live = Book(w), sw.eager(lambda h: h.__iadd__(1))

        def fn(x):
            h = x + 1
            if not float(x[0]):
                (_row if what == "a list" else _last)(b, h)
            live(h)
            return h

        f = w.graph(fn)
        for turn in (1, 0, 1, 1, 0, 0, 1, 0):
            yield f(w.array(np.full(4, float(turn)))), b.rows, b.last["h"], b.codes

    agree(program)


def test_a_recording_that_asks_more_of_a_number(agree, tmp_path):
    """What it asks of a sum is guarded, though no warm-up had asked that."""
    note = tmp_path / "note"

    def program(w):
        b = Book(w)
        note.write_text("")

        def fn(x):
            h = x * 2
            if float(h[0]) > 1:
                h = h + 1
            b.calls += 1
            if unseen.read(note) and b.calls > 9:
                h = h * 3
            return h

        f = w.graph(fn)
        for i in range(16):
            if i == 1:
                note.write_text("asks")
            yield f(w.array(np.ones(4))), b.calls

    agree(program)
