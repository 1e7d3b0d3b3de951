"""Functions that ask which of the things they reach are one object, arrays aside."""

from __future__ import annotations

import dataclasses
import functools
import types

import numpy as np
import pytest

from sapwood import _fast
from sapwood.tree.guards import steps
from sapwood.tree.guards.aliasing import Apart
from sapwood.tree.guards.ambient import Ambient
from tests.support.tree_mutants import miswritten


@dataclasses.dataclass
class Settings:
    """Compared by what is in it: another one of the same values is as good."""

    scale: float = 2.0


def _activation(scale):
    def activation(x):
        return x * scale

    return activation


def _method(things):
    return things.append


MAKERS = {
    "dataclass": Settings,
    "list": lambda: [1.0, 2.0],
    "dict": lambda: {"scale": 2.0},
    "set": lambda: {2.0},
    "tuple": lambda: ([2.0],),
    "namespace": lambda: types.SimpleNamespace(scale=2.0),
    "function": lambda: _activation(2.0),
    "partial": lambda: functools.partial(_activation, 2.0),
    "bound method of a list": lambda: _method([2.0]),
}


class State:
    """Slots for things, and a list of such; all of them are apart."""

    def __init__(self, make):
        self.inner = types.SimpleNamespace()
        self.part(make)

    def part(self, make):
        self.one, self.other, self.inner.one = make(), make(), make()
        self.several = [make(), make()]

    def join(self):
        self.one = self.inner.one = self.several[1] = self.other


def _two_slots(state, x):
    return x * 2 if state.one is state.other else x * 3


def _among_several(state, x):
    return x * 2 if any(each is state.other for each in state.several) else x * 3


def _by_number(state, x):
    return x * 2 if id(state.one) == id(state.other) else x * 3


def _further_in(state, x):
    return x * 2 if state.inner.one is state.other else x * 3


PROGRAMS = [_two_slots, _among_several, _by_number, _further_in]


def _check(f, program, state, x, times=12):
    for k in range(times):
        expected = np.asarray(program(state, x)).tolist()
        assert np.asarray(f(x)).tolist() == expected, k


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__[1:])
@pytest.mark.parametrize("kind", MAKERS)
def test_two_become_one_and_two_again(rt, program, kind):
    """Nothing but which object is in a slot differs between the calls."""
    make = MAKERS[kind]
    state = State(make)
    f = rt.graph(lambda x: program(state, x), max_recordings=8)
    x = rt.array(np.arange(3.0))
    for _ in range(2):
        _check(f, program, state, x)
        state.join()
        _check(f, program, state, x)
        state.part(make)
    assert f.stats().recordings == 2


def test_a_global_of_the_same_values(rt):
    """A default is told from settings that say the same."""
    default = Settings()
    state = types.SimpleNamespace(settings=Settings())
    f = rt.graph(lambda x: x * 2 if state.settings is default else x * 3)
    x = rt.array(np.ones(3))
    for settings in [Settings(), default, Settings(), default]:
        state.settings = settings
        for _ in range(20):
            expected = 2 if settings is default else 3
            assert np.asarray(f(x)).tolist() == [expected] * 3
    assert f.stats().recordings == 2


def test_the_thing_that_a_function_is_called_with(rt):
    """An object held for itself, and a slot of which only the class counts."""

    @dataclasses.dataclass
    class Model:
        settings: Settings
        act: object = None

        def __call__(self, x):
            return x * 2 if self.settings is self.act else x * 3

    model = Model(Settings(), Settings())
    f = rt.graph(model)
    x = rt.array(np.ones(3))
    for _ in range(2):
        model.act = Settings()
        assert [np.asarray(f(x)).tolist() for _ in range(20)] == [[3.0] * 3] * 20
        model.act = model.settings
        assert [np.asarray(f(x)).tolist() for _ in range(20)] == [[2.0] * 3] * 20


def test_many_that_are_alike(rt):
    """More than a program would compare pair by pair."""
    state = types.SimpleNamespace(several=[[1.0] for _ in range(150)], one=[1.0])
    f = rt.graph(lambda x: x * sum(each is state.one for each in state.several))
    x = rt.array(np.ones(3))
    for count in (0, 1, 0, 1):
        state.several[70] = state.one if count else [1.0]
        for _ in range(20):
            assert np.asarray(f(x)).tolist() == [count] * 3


def test_a_miss_says_which_are_one(rt):
    """By what a user would write."""
    default = Settings()
    state = types.SimpleNamespace(settings=Settings())
    f = rt.graph(lambda x: x * 2 if state.settings is default else x * 3)
    x = rt.array(np.ones(3))
    for _ in range(3):
        f(x)
    state.settings = default
    f(x)
    assert "default and state.settings were two objects, are one object" in f.explain()


def test_who_does_not_ask_is_not_held_to_it(rt):
    """The same values are good enough, whoever holds them."""
    default = Settings()
    state = types.SimpleNamespace(settings=Settings())
    f = rt.graph(lambda x: x * state.settings.scale * default.scale)
    x = rt.array(np.ones(3))
    for k in range(30):
        state.settings = default if k > 9 else Settings()
        assert np.asarray(f(x)).tolist() == [4.0] * 3
    assert f.stats().recordings == 1


MUTANTS = {
    "tests that do not ask": (Apart.holds, "==", "<="),
    "tests without it": (Ambient._differs, "each.holds(reading.things)", "True"),
}
if _fast.native() is not None:
    MUTANTS["guards in C without it"] = steps.assembled, "each in apart", "each in ()"


@pytest.mark.parametrize("mutant", MUTANTS)
def test_what_would_be_wrong_is_seen(rt, mutant):
    """Each of these, written wrongly, gives some call another's answer."""
    with miswritten(*MUTANTS[mutant]), pytest.raises(AssertionError):
        test_two_become_one_and_two_again(rt, _two_slots, "dataclass")
