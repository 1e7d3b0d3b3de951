"""Containers that are one: in what is passed, in slots, and in what is returned."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

CALLS = 8


@dataclass
class Pair:
    """A container of the user's."""

    one: object
    other: object


def _read(value):
    """Return a nest of lists, which container is which included."""
    seen = {}

    def read(value):
        if isinstance(value, (list, tuple, dict, deque, Pair)):
            number = -1
            if not isinstance(value, tuple):
                number = seen.setdefault(id(value), (len(seen), value))[0]
            inside = vars(value) if isinstance(value, Pair) else value
            inside = [*inside.items()] if isinstance(inside, dict) else [*inside]
            return [type(value).__name__, number, *map(read, inside)]
        return value if isinstance(value, str) else np.asarray(value).tolist()

    return read(value)


def _alike(rt, fn, make):
    """Call a function replayed and plain, each with what ``make`` returns."""
    f, here, there = rt.graph(fn), make(rt.array), make(np.array)
    for i in range(CALLS):
        for state in here, there:
            state["x"] = rt.array(np.ones(2) * i) if state is here else np.ones(2) * i
        found, expected = f(here), fn(there)
        assert _read(found) == _read(expected)
        assert _read(here) == _read(there)
    assert f.stats().replays >= 1


def _adds_a_key(state):
    state["y"] = state["x"] * 2
    return state


def _binds_and_returns(state):
    state["w"] = state["w"] - 0.5 * state["x"]
    return state, state["w"]


def _binds_in_a_list(state):
    state["l"][0] = state["l"][1] + state["x"]
    return state["l"]


def _turns_a_list(state):
    state["l"].reverse()
    return [state["l"], state["l"][0] + state["x"]]


def _binds_a_field(state):
    state["p"].one = state["p"].one * 2 + state["x"]
    return state["p"]


def _returns_one_twice(state):
    made = {"w": state["x"] * 2}
    return {"a": made, "b": made, "c": [made, (made, made)]}


def _returns_one_of_each_kind(state):
    x = state["x"] + 1
    made = [x], OrderedDict(a=x), defaultdict(list, a=x), deque([x]), Pair(x, x)
    return [made, made, [*made], tuple(made)]


PROGRAMS = [
    _adds_a_key,
    _binds_and_returns,
    _binds_in_a_list,
    _turns_a_list,
    _binds_a_field,
    _returns_one_twice,
    _returns_one_of_each_kind,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__[1:])
def test_what_is_returned_is_as_it_is_left(rt, program):
    """A result shows what the function has bound, and one container as one."""

    def make(array):
        x = [array(np.arange(2.0) + k) for k in range(5)]
        return {"x": x[0], "w": x[1], "l": [x[2], x[3]], "p": Pair(x[4], "a name")}

    _alike(rt, program, make)


def _binds_in_all(state):
    for each in state["several"]:
        each["p"] = each["p"] - 0.1 * state["x"]
    return state["several"][0]["p"] * 1


def _asks(state):
    first, second = state["several"]
    return first["p"] * 2 if first is second else first["p"] * 3


@pytest.mark.parametrize("program", [_binds_in_all, _asks])
@pytest.mark.parametrize("one", [True, False])
def test_one_container_passed_twice(rt, program, one):
    """What is written by one name is read by the other."""

    def make(array):
        first = {"p": array(np.ones(2))}
        second = first if one else {"p": array(np.ones(2))}
        return {"x": array(np.ones(2)), "several": [first, second]}

    _alike(rt, program, make)


def test_now_one_and_now_two(rt):
    """The same arrays in one list or in two are different calls."""
    f = rt.graph(lambda p, q: p[0] * 2 if p is q else p[0] * 3 + q[0])
    x = rt.array(np.ones(2))
    for one in (False, True, False, True) * 3:
        p = [x]
        q = p if one else [x]
        assert np.asarray(f(p, q)).tolist() == ([2, 2] if one else [4, 4])


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_empty_containers_that_are_one(rt):
    """They hold no array that could tell."""

    def fn(p, q, x):
        p.append(x * 2)
        return len(q) * x + 1

    x = rt.array(np.ones(2))
    f = rt.graph(fn)
    for one in (False,) * 12 + (True,) * 3 + (False,) * 3:
        p = []
        q = p if one else []
        assert np.asarray(f(p, q, x)).tolist() == ([2, 2] if one else [1, 1])


def test_an_argument_that_a_slot_holds_too(rt):
    """What is written into the argument is read through the slot."""
    model = SimpleNamespace(params={"w": rt.array(np.ones(2))})
    half = rt.array(np.full(2, 0.5))

    @rt.graph
    def step(params, d):
        params["w"] = params["w"] - d
        return model.params["w"] * 2

    expected = 1.0
    for _ in range(CALLS):
        expected -= 0.5
        assert np.asarray(step(model.params, half)).tolist() == [2 * expected] * 2
        assert np.asarray(model.params["w"]).tolist() == [expected] * 2


def test_an_argument_of_a_call_that_was_like_the_one_before(rt):
    """It is recorded anew, for a value; and the slot still holds the argument."""
    model = SimpleNamespace(params={"w": rt.array(np.ones(2))}, rate=0.5)
    x = rt.array(np.ones(2))

    @rt.graph
    def step(params, x):
        params["w"] = params["w"] - x * model.rate
        return model.params["w"] * 2

    expected = 1.0
    for turn in range(24):
        model.rate = 0.5 if turn % 12 < 8 else 0.25
        # Bound by hand, so that the same arrays come again.
        model.params["w"] = w = rt.array(np.full(2, expected))
        for _ in range(3):
            model.params["w"] = w
            assert (
                np.asarray(step(model.params, x)).tolist()
                == [2 * (expected - model.rate)] * 2
            )
        expected -= model.rate


def test_a_call_that_fails_leaves_containers_as_they_were(rt):
    """Those that were passed themselves, too."""
    state = {"w": rt.array(np.ones(2))}
    holder, wrong = SimpleNamespace(state=state), [False]

    @rt.graph
    def fn(given, x):
        given["w"] = given["w"] + x
        if wrong[0]:
            raise ValueError("as asked")
        return holder.state["w"] * 1

    x = rt.array(np.ones(2))
    fn(state, x)
    wrong[0] = True
    for _ in range(3):
        before = np.asarray(state["w"]).tolist()
        with pytest.raises(ValueError, match="as asked"):
            fn(state, x)
        assert np.asarray(state["w"]).tolist() == [value + 1 for value in before]


@dataclass
class Options:
    """What a call may be made with."""

    scale: float = 2.0


@pytest.mark.parametrize("first", [True, False])
def test_the_default_and_one_like_it(rt, first):
    """A function that asks whether it was passed its own default."""
    default, several = Options(), [rt.array(np.ones(2))]

    def fn(x, options=default, given=several):
        y = x * 2 if options is default else x * 3
        return y + 1 if given is several else y + given[0]

    f, other = rt.graph(fn, max_recordings=32), [rt.array(np.full(2, 4.0))]
    ways = [(), (Options(),), (default, several), (default, other), (Options(), other)]
    for args in ways[:: 1 if first else -1] * 3:
        for _ in range(12):
            x = rt.array(np.ones(2))
            expected = np.asarray(fn(x, *args)).tolist()
            assert np.asarray(f(x, *args)).tolist() == expected
    assert f.stats().replays >= 30
