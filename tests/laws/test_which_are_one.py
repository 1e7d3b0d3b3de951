"""Functions that ask which arrays are one object: each call gets its own answer."""

from __future__ import annotations

import collections
import operator
import random
import warnings

import numpy as np
import pytest

import sapwood as sw
from sapwood.tree.record.taking import RecordRequest
from tests.support.rig import Rig
from tests.support.tree_mutants import WHICH_MUTANTS


class State:
    """Two slots, one of which programs use, a list of arrays, and a dict of them."""

    def __init__(self, array):
        self.a, self.w, self.several, self.known = array, array, [array], {}


def _same_as_unused(state, x):
    return x * 2 if state.a is x else x * 3


def _unlike_unused(state, x):
    return x * 2 if state.a is not x else x * 3 + state.a


def _slots(state, x):
    return x * state.w if state.a is state.w else x * state.w * 3


def _same_as_used(state, x):
    return state.w * 2 if state.w is x else state.w * 3


def _by_number(state, x):
    return x + 1 if id(state.a) == id(x) else x + 2


def _by_operator(state, x):
    return x + 1 if operator.is_(state.a, x) else x + 2


def _in_a_loop(state, x):
    return x + sum(1 for each in state.several if each is x)


def _in_a_nested_function(state, x):
    def asked():
        return state.a is x

    return x + 1 if asked() else x + 2


def _as_a_key(state, x):
    return x * state.known.get(x, 3)


def _how_many(state, x):
    return x * len({state.a, x, state.w})


def _made_a_set(state, x):
    return x * len(set([state.a, x])) + len(frozenset((state.w, x)))  # noqa: C405


def _added(state, x):
    seen = set()
    seen.add(state.a)
    seen.add(x)
    return x * len(seen)


def _in_a_set_comprehension(state, x):
    return x * len({each for each in (state.a, x, state.w)})  # noqa: C416


def _from_keys(state, x):
    return x * len(dict.fromkeys([state.a, x]))


def _met(state, x):
    return x * (2 + len({state.a} & {x}))


def _counter(state, x):
    return x * collections.Counter([state.a, x])[x]


def _by_hash(state, x):
    return x * 2 if hash(state.a) == hash(x) else x * 3


def _by_another_name(state, x):
    return x * 2 if same(state.a, x) else x * 3


def _by_a_number_of_another_name(state, x):
    return x * 2 if number(state.a) == number(x) else x * 3


def _by_a_counter_of_another_name(state, x):
    return x * len(Tally([state.a, x]))


def _by_text(state, x):
    return x * 2 if object.__repr__(state.a) == object.__repr__(x) else x * 3


def _of_tuples(state, x):
    return x * len({(state.a, 1), (x, 1)})


same, number, Tally = operator.is_, id, collections.Counter

HASHING = [
    _how_many,
    _made_a_set,
    _added,
    _in_a_set_comprehension,
    _from_keys,
    _met,
    _counter,
    _by_hash,
    _by_a_counter_of_another_name,
    _of_tuples,
]
"""Programs that ask by hashing arrays."""

PROGRAMS = [
    *HASHING,
    _by_another_name,
    _by_a_number_of_another_name,
    _by_text,
    _as_a_key,
    _same_as_unused,
    _unlike_unused,
    _slots,
    _same_as_used,
    _by_number,
    _by_operator,
    _in_a_loop,
    _in_a_nested_function,
]


def _are_keys(x):
    """Return whether arrays of this kind can be keys: CuPy's cannot."""
    return type(x).__hash__ is not None


def _fits(program, x):
    if program in {_as_a_key, *HASHING} and not _are_keys(x):
        pytest.skip("these arrays cannot be keys")


def _scene(rt, state, kind, i):
    """Bind slots as this kind of a call has them; return its argument."""

    def new(k):
        return rt.array(np.arange(3.0) + i + k)

    x = new(0)
    state.a, state.w, state.several = new(1), new(2), [new(3), new(4)]
    state.known = {state.several[0]: 2} if _are_keys(x) else {}
    match kind:
        case "a is x":
            state.a = x
        case "w is x":
            state.w = x
        case "a is w":
            state.a = state.w
        case "x is among several":
            state.several[1] = x
        case "x is a key" if _are_keys(x):
            state.known[x] = 5
        case "all are one":
            state.a = state.w = x
    return x


KINDS = [
    "all are apart",
    "a is x",
    "w is x",
    "a is w",
    "x is among several",
    "x is a key",
    "all are one",
]


def _check(f, program, state, x, times=1):
    expected = np.asarray(program(state, x)).tolist()
    for _ in range(times):
        assert np.asarray(f(x)).tolist() == expected


@pytest.mark.one_in(2)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__[1:])
@pytest.mark.parametrize("first", ["all are apart", "a is x", "all are one"])
def test_the_answer_is_the_calls_own(rt, program, first):
    """Whatever was recorded first, and however often it was replayed since."""
    state = State(rt.array(np.zeros(3)))
    _fits(program, state.a)
    f = rt.graph(lambda x: program(state, x), max_recordings=32)
    for kind in [first] * 4 + KINDS * 2:
        for i in range(3):
            _check(f, program, state, _scene(rt, state, kind, i))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__[1:])
def test_arrays_that_stay(rt, program):
    """Calls like the one before are replayed at once; one that is not, is noticed."""
    state = State(rt.array(np.zeros(3)))
    _fits(program, state.a)
    f = rt.graph(lambda x: program(state, x))
    x = _scene(rt, state, "all are apart", 0)
    _check(f, program, state, x, 30)
    assert f.stats().replays >= 24
    for other in (state.a, state.w, *state.several, *state.known):
        # The slots are as they were.
        _check(f, program, state, other, 3)
        _check(f, program, state, x, 20)
    before, apart = f.stats().replays, state.a
    state.a = x
    _check(f, program, state, x, 20)
    state.a = apart
    _check(f, program, state, x, 2)
    state.a = rt.array(np.ones(3))
    for _ in range(2):
        _check(f, program, state, rt.array(np.arange(3.0)), 20)
    assert f.stats().replays >= before + 30


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_calls(rt, seed):
    """Scenes at random, and now and then an argument again."""
    chosen = random.Random(seed)
    state = State(rt.array(np.zeros(3)))
    program = chosen.choice(PROGRAMS)
    _fits(program, state.a)
    f = rt.graph(lambda x: program(state, x), max_recordings=32)
    x = None
    for i in range(60):
        if x is None or chosen.random() < 0.5:
            x = _scene(rt, state, chosen.choice(KINDS), i % 3)
        _check(f, program, state, x)


@pytest.mark.minimal
def test_a_view_of_the_array_is_another(rt):
    """At the same address, of the same looks: it is not the one in the slot."""
    state = State(rt.array(np.arange(3.0)))
    f = rt.graph(lambda x: _same_as_used(state, x))
    g = rt.graph(lambda x: _same_as_unused(state, x))
    for x in [state.w] * 4 + [state.w[:]] * 4 + [state.w] * 2:
        state.a = state.w
        _check(f, _same_as_used, state, x)
        _check(g, _same_as_unused, state, x)


def test_what_a_function_keeps_of_its_last_call(rt):
    """A function that remembers its argument, and what came of it."""
    state = {"x": None, "y": None, "hits": rt.array(np.zeros(1))}

    def remembering(x):
        if x is not state["x"]:
            state["x"], state["y"] = x, x * 2
        else:
            state["hits"] += 1
        return state["y"]

    f = rt.graph(remembering)
    for i in range(12):
        x = rt.array(np.arange(3.0) + i)
        for k in range(3):
            y = f(x)
            assert np.asarray(y).tolist() == ((np.arange(3.0) + i) * 2).tolist()
            assert state["x"] is x
            assert np.asarray(state["hits"]).tolist() == [2 * i + k]


def test_around_an_eager_region(rt):
    """The first part asks, and a part behind a live one."""
    state = State(rt.array(np.zeros(3)))
    look = sw.eager(lambda _: None)

    def fn(x):
        h = x * 2 if state.a is x else x * 3
        look(h)
        return h + 1 if state.a is x else h + 2

    plain = fn
    f = rt.graph(fn, max_recordings=16)
    for kind in ["all are apart", "a is x"] * 3:
        for i in range(4):
            x = _scene(rt, state, kind, i)
            expected = np.asarray(plain(x)).tolist()
            assert np.asarray(f(x)).tolist() == expected


def _of_keys_passed(known, x):
    return x * known.get(x, 3)


def _of_keys_with_others(known, x):
    return x * known.get((x, 0), 3)


@pytest.mark.parametrize("ask", [_of_keys_passed, _of_keys_with_others])
@pytest.mark.parametrize("passed", [True, False])
def test_keys_of_what_is_passed_or_reached(rt, ask, passed):
    """Alone or in tuples, in a dict that is an argument or a slot's."""
    a, b = rt.array(np.ones(3)), rt.array(np.ones(3))
    if not _are_keys(a):
        pytest.skip("these arrays cannot be keys")
    known = {a: 2} if ask is _of_keys_passed else {(a, 0): 2}
    state = State(a)
    state.known = known
    f = rt.graph(ask if passed else lambda _, x: ask(state.known, x))
    for x in [b] * 8 + [a] * 4 + [b] * 2:
        expected = np.asarray(ask(known, x)).tolist()
        found = f(known, x) if passed else f(0, x)
        assert np.asarray(found).tolist() == expected


def test_keys_of_other_dicts_of_one_function(rt):
    """Each of several dicts has its own arrays for keys, and calls take turns."""
    a, b, c = (rt.array(np.ones(3)) for _ in range(3))
    if not _are_keys(a):
        pytest.skip("these arrays cannot be keys")
    state = State(rt.array(np.ones(3)))

    def fn(known, x):
        factor = known.get(x, 3)
        return x * factor * state.w if state.a is state.w else x

    f = rt.graph(fn)
    # Whose keys are names, and what it reaches besides is known from now on.
    for _ in range(6):
        assert np.asarray(f({"name": 2}, a)).tolist() == [3] * 3
    tables = [{a: 2}, {b: 2}, {c: 2}]
    for turn in range(48):
        known, x = tables[turn % 3], (a, b, c)[turn // 3 % 3]
        factor = 2 if x in known else 3
        assert np.asarray(f(known, x)).tolist() == [factor] * 3
    assert f.stats().replays >= 24


@pytest.mark.parametrize("kept", ["slot", "key", "member"])
def test_the_number_of_an_array(rt, kept):
    """One that is kept from before, as caches keep them."""
    a, b = rt.array(np.ones(3)), rt.array(np.ones(3))
    state = State(a)
    state.last, state.table, state.seen = id(a), {id(a): 2}, {id(a)}

    def ask(x):
        match kept:
            case "slot":
                return x * 2 if state.last == id(x) else x * 3
            case "key":
                return x * state.table.get(id(x), 3)
        return x * 2 if id(x) in state.seen else x * 3

    f = rt.graph(ask)
    for x in [b] * 12 + [a] * 12 + [b] * 2 + [a] * 2:
        assert np.asarray(f(x)).tolist() == ([2] * 3 if x is a else [3] * 3)
    assert f.stats().replays >= 20


def test_a_slot_that_another_thread_binds_meanwhile(rt, monkeypatch):
    """Between the look at a call and its capture, once: later calls are as ever."""
    state, x = State(rt.array(np.ones(3))), rt.array(np.arange(3.0))
    f = rt.graph(lambda x: x * 2 if state.a is x else x * 3)
    f(x)
    apart, check = state.a, RecordRequest.check_same

    def binds(order, now):
        if state.a is apart and not bound:
            bound.append(1)
            state.a = x
            now = order.survey({})
        check(order, now)

    bound = []
    monkeypatch.setattr(RecordRequest, "check_same", binds)
    assert np.asarray(f(x)).tolist() == [0, 2, 4]
    assert bound
    for a, factor in [(apart, 3), (x, 2)] * 4:
        state.a = a
        assert np.asarray(f(x)).tolist() == [0, factor, 2 * factor]


def test_a_state_that_is_fed_back(rt):
    """It is in a slot, too, and another one every time: what is in vain is told, once.

    On a GPU some of its recordings are replayed, and nothing is in vain.
    """
    state = State(rt.array(np.ones(3)))

    def step(h):
        state.a = h * 2 if state.a is h else h * 3
        return state.a

    f, h, expected = rt.graph(step), rt.array(np.ones(3)), 1.0
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for i in range(60):
            h, expected = f(h), expected * (2 if i else 3)
            assert np.asarray(h).tolist() == [expected] * 3
    vain = f.stats().passed_through > 0
    assert ["do not come again" in str(each.message) for each in told] == [True] * vain
    assert f.stats().recordings <= 24


def test_a_function_that_does_not_ask_has_one_recording(rt):
    """Which arrays are one does not matter to it: no recording is made for it."""
    state = State(rt.array(np.zeros(3)))
    f = rt.graph(lambda x: x * 2 + (0 if state.a is None else 1))
    x = rt.array(np.arange(3.0))
    for kind in ("other", "other", "x") * 4:
        state.a = x if kind == "x" else rt.array(np.ones(3))
        assert np.asarray(f(x)).tolist() == [1, 3, 5]
    assert f.stats().recordings == 1


@pytest.mark.deep
@pytest.mark.parametrize("mutant", WHICH_MUTANTS, ids=lambda mutant: mutant.name)
def test_what_would_be_wrong_is_seen(mutant):
    """Each of these, written wrongly, gives some call another's answer."""
    rig = Rig("latest")

    def any_wrong():
        for program in PROGRAMS[len(HASHING) :]:
            test_arrays_that_stay(rig.runtime, program)
            test_the_answer_is_the_calls_own(rig.runtime, program, KINDS[0])

    any_wrong()
    with mutant.patch(), pytest.raises((AssertionError, sw.GraphSkipWarning)):
        any_wrong()
    rig.abandon()
