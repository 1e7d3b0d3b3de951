"""What runs while a replay is decided may replay, too: finalisers, signal handlers."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import sapwood as sw
from sapwood import _fast
from tests.support.rig import IN_C, Rig

LONG = 40
"""Calls after which fast replays are played in C."""


class Within:
    """A function of two outputs, and what is to run when its slots are looked at."""

    def __init__(self, variant):
        self.rig = Rig(variant)
        runtime, todo = self.rig.runtime, []
        self.f = runtime.graph(lambda x, y: (x + y, x * y))
        self.ones, self.twos, self.fives = (
            runtime.array(np.full(4, number)) for number in (1.0, 2.0, 5.0)
        )
        for k in range(2 * LONG):
            self.f(self.fives if k < LONG and k % 2 else self.ones, self.twos)
        self.fast_replays = self.f.runner().fast_replays
        (self.node,) = self.f.runner().cache.nodes
        self.fast = next(iter(self.fast_replays._ready), None)
        program = self.node.ambient.program
        program.write()
        inner = program.read

        def look():
            if todo:
                todo.pop()()
            return inner()

        # What has been put to C has the other: it is put there again.
        program.read, self.fast_replays.players = look, ()
        if self.fast is not None:
            self.fast._rest = 1
        self(), self()
        self.launches, self.todo = self.launched(), todo

    def __call__(self):
        return self.told(self.f(self.ones, self.twos))

    def launched(self):
        return self.rig.lending.launches if self.rig.lending else 0

    @staticmethod
    def told(found):
        return [np.asarray(each).tolist() for each in found]


RIGHT = [[3.0] * 4, [2.0] * 4]


@pytest.fixture(params=[IN_C, "latest"])
def within(request):
    """Replays in C, and decided ones."""
    if request.param == IN_C and _fast.native() is None:
        pytest.skip("nothing in C here")
    made = Within(request.param)
    assert made() == RIGHT
    assert made.launched() == made.launches + (request.param == IN_C)
    yield made
    made.rig.abandon()


def test_what_a_replay_within_gave_stays(within):
    """It is held: the replay around it overwrites nothing of it."""
    held = []
    within.todo.append(lambda: held.extend(within.f(within.fives, within.twos)))
    assert within() == RIGHT
    assert within.told(held) == [[7.0] * 4, [10.0] * 4]
    assert not within.todo
    held.clear()
    assert within() == RIGHT


def test_what_is_kept_may_be_let_go_within(within):
    """As where memory is short: arrays are made over new storages."""
    recordings = within.rig.runtime._recordings

    def let_go():
        recordings._let_go()
        gc.collect()

    within.todo.append(let_go)
    for _ in range(3):
        assert within() == RIGHT
    assert not within.todo


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("is_put", [False, True])
def test_what_is_kept_may_be_let_go_while_arrays_are_made(monkeypatch, number, is_put):
    """By a finaliser: all arrays are made of what there was, by all who make any."""
    if _fast.native() is None:
        pytest.skip("nothing in C here")
    within, todo = Within(IN_C), []
    recordings = within.rig.runtime._recordings
    inner = type(recordings.integration).make

    def make(self, *args):
        if todo and todo.pop() == 0:
            recordings._let_go()
            gc.collect()
        return inner(self, *args)

    monkeypatch.setattr(type(recordings.integration), "make", make)
    within.fast.let_go()
    within.fast._rest = 1
    if is_put:
        assert within() == within() == RIGHT
        assert within.launched() > within.launches
    todo[:] = range(number + 1)
    for _ in range(6):
        assert within() == RIGHT
    assert not todo
    within.rig.abandon()


def test_what_is_evicted_within_is_not_launched(within):
    """Its call is as any other; so it is refused where the runtime is closed."""
    recordings = within.rig.runtime._recordings
    within.todo.append(lambda: recordings.fell(within.node, "for this test"))
    launches = within.launched()
    assert within() == RIGHT
    assert within.launched() == launches
    assert within.f.stats().evicted == 1


def test_a_runtime_that_is_closed_within_is_told_of(within):
    """As if it had been before."""
    within.todo.append(within.rig.runtime.close)
    with pytest.raises(sw.MisuseError, match="closed"):
        within()


@pytest.mark.parametrize("number", range(2))
def test_what_is_given_while_arrays_are_made_is_of_its_own(monkeypatch, number):
    """A replay is done, and its arrays are not made: their bytes are had already."""
    if _fast.native() is None:
        pytest.skip("nothing in C here")
    within, todo, held = Within(IN_C), [], []
    integration = type(within.rig.runtime._recordings.integration)
    inner = integration.make

    def make(self, *args):
        if todo and todo.pop() == 0:
            held.extend(within.f(within.fives, within.twos))
        return inner(self, *args)

    monkeypatch.setattr(integration, "make", make)
    within.fast.let_go()
    within.fast._rest = 1
    assert within() == within() == RIGHT
    assert within.launched() > within.launches
    todo[:] = range(number + 1)
    assert within() == RIGHT
    assert within.told(held) == [[7.0] * 4, [10.0] * 4]
    assert not todo
    within.rig.abandon()


@pytest.mark.parametrize("variant", ["latest", IN_C])
def test_recordings_that_take_turns_look_once(variant):
    """That an output is held is seen before guards are asked, which takes longer."""
    rig, looks = Rig(variant), [0]
    weight, x = (rig.runtime.array(np.full(4, number)) for number in (1.0, 2.0))
    f, result = rig.runtime.graph(lambda x: x + weight), None
    for _ in range(10):
        result = f(x)
    fast_replays = f.runner().fast_replays
    first, second = f.runner().cache.nodes
    program = first.ambient.program
    assert second.ambient.program is program
    inner = program.read

    def look():
        looks[0] += 1
        return inner()

    # What has been put to C has the other: it is put there again.
    program.read, fast_replays.players = look, ()
    for each in fast_replays._ready:
        each.compiled, each._rest = None, 1
    for _ in range(4):
        result = f(x)
    before, calls = looks[0], f.stats().replays
    for _ in range(LONG):
        result = f(x)
    assert looks[0] - before == f.stats().replays - calls == LONG
    assert np.asarray(result).tolist() == [3.0] * 4
    rig.abandon()
