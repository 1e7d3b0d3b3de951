"""Results that cannot be taken apart, or made anew, are told by what they are."""

from __future__ import annotations

import functools
import threading

import numpy as np
import pytest

import sapwood as sw


class Pair:
    """A class that nobody has registered, and that says itself how it is copied."""

    def __init__(self, left, right):
        self.left, self.right = left, right

    def __reduce__(self):
        return Pair, (self.left, self.right)


async def _later():
    """Return nothing, later."""


def _coroutine(x):
    made = _later()
    made.close()
    return x + 1, made


def _later_on(array):
    return lambda: array


ANEW = {
    "a generator": lambda x: (x + 1, (i for i in range(3))),
    "a function": lambda x: (x + 1, lambda: 3),
    "a coroutine": _coroutine,
    "a list_iterator": lambda x: (x + 1, iter([1])),
    "an object": lambda x: [object(), x + 1],
    "a Pair": lambda x: (x + 1, Pair(1, 2)),
}

HOLDING = {
    "a Pair": lambda x: Pair(x + 1, 2),
    "a set": lambda x: ({x + 1}, x),
    "a function": lambda x: _later_on(x + 1),
}


def _called(f, x):
    with pytest.raises(sw.CaptureError) as caught:
        for _ in range(4):
            f(x)
    assert f.stats().replays == 0
    return str(caught.value), caught.value.remedy


@pytest.mark.parametrize("what", ANEW)
def test_what_each_call_makes_anew_is_named(rt, what):
    """It is no value that differs by chance: no call gives the same one."""
    said, remedy = _called(rt.graph(ANEW[what], fullgraph=True), rt.array(np.ones(3)))
    assert f"the result holds {what}, which each call makes anew" in said
    assert ("register_container" in remedy) == (what == "a Pair")
    assert "a random number" not in said


@pytest.mark.parametrize("what", HOLDING)
def test_what_holds_an_array_is_named(rt, what):
    """The array does outlive the function, in the result: but nobody sees it there."""
    said, remedy = _called(
        rt.graph(HOLDING[what], fullgraph=True), rt.array(np.ones(3))
    )
    assert f"the result holds {what}, which is not taken apart" in said
    known = what.removeprefix("a ")
    taught = f"sapwood.register_container({known}" in remedy
    assert taught == (known == "Pair")
    assert "dataclass, tuple or dict" in remedy


@pytest.mark.parametrize("more", [3, "text", Pair])
def test_what_is_no_new_object_is_not_blamed(rt, more):
    """An array that is nowhere in the result is told as before, whatever it holds."""
    keep, x = threading.Thread(), rt.array(np.ones(3))

    def f(x):
        keep.held = x * 2
        return x + 1, more

    said, _ = _called(rt.graph(f, fullgraph=True), x)
    assert "the result holds" not in said


def test_a_value_that_differs_by_chance_is_still_told_so(rt):
    """Beside an object that every call gives again."""
    numbers, shared = iter(range(9)), Pair(1, 2)
    take = numbers.__next__
    f = rt.graph(lambda x: (shared, take(), x + 1), fullgraph=True)
    said, _ = _called(f, rt.array(np.ones(3)))
    assert "the result holds" not in said


HELD = {
    "a map": (lambda x: map(np.negative, [x]), next),
    "a map of what is made": (lambda x: map(np.negative, [x * 2]), next),
    "a generator": (lambda x: (each * 2 for each in [x]), next),
    "an iterator": (lambda x: iter([x]), next),
    "a partial": (lambda x: functools.partial(np.negative, x), lambda made: made()),
    "a bound method": (lambda x: x.sum, lambda made: made()),
    "a function": (lambda x: lambda: x * 2, lambda made: made()),
    "a Pair": (lambda x: Pair(x, 2), lambda made: made.left),
}


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("what", HELD)
def test_what_an_object_holds_can_be_used(rt, what):
    """Of whichever call it is: also of the one that was tried to be recorded."""
    fn, use = HELD[what]
    f, kept = rt.graph(fn), []
    for i in range(6):
        x = np.arange(3.0) + i
        kept.append((f(rt.array(x)), x))
        if i % 2:
            for made, given in kept:
                found = np.asarray(use(made)).tolist()
                assert found == np.asarray(use(fn(given))).tolist()
            kept.clear()


@pytest.mark.every_framework
@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("after", ["a region", "a value", "values"])
def test_what_nobody_can_open_is_of_eager_calls(agree, after):
    """Arrays in it are the user's own, also where parts of the call have run before."""

    def program(w):
        kept, live = [], sw.eager(lambda _: None)

        def fn(x):
            h = x * 2
            if after == "a region":
                live(h)
            elif float(h.sum()) > 100:
                h = h - 1
            return Pair(h * 3, h + 1), h + 2

        f = w.graph(fn)
        for i in range(9):
            x = w.array(np.full(3, float(i % 2 if after == "values" else 1)))
            pair, y = f(x)
            kept += [pair.left, pair.right, y]
            w.values(64)  # memory that was let go of is somebody else's
            yield kept, x

    agree(program)
