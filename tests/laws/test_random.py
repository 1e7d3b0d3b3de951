"""Law 11: random numbers go on as eager's would, whatever is replayed or fails."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

import sapwood as sw
from sapwood.driver.facade import gives_back


def _dropout(x, rng):
    mask = rng.random(x.shape) < 0.5
    return x * mask, rng.uniform(-1.0, 1.0, (3,))


def test_a_generator_is_numpys(rt):
    """The device's generator draws what NumPy's Philox draws, eagerly."""
    ours, theirs = rt.generator(3), np.random.Generator(np.random.Philox(3))
    for shape in ((4,), (2, 3), (), (0,), (5,)):
        assert np.asarray(ours.random(shape)).tobytes() == (
            np.asarray(theirs.random(shape)).tobytes()
        )
        drawn = np.asarray(ours.random(shape, dtype=np.float32))
        expected = np.asarray(theirs.random(shape, dtype=np.float32))
        assert drawn.dtype == np.float32
        assert drawn.tobytes() == expected.tobytes()


@pytest.mark.parametrize("how", ["argument", "closed over", "attribute"])
def test_the_same_sequence_eager_or_replayed(agree, how):
    """D test_graph_rng_functional: passed in or closed over, it goes on by calls."""

    def program(w):
        rng, x = w.generator(5), w.values(4, 2)
        holder = [rng]
        if how == "argument":
            f = w.graph(_dropout)
        elif how == "closed over":
            f = w.graph(lambda x, _: _dropout(x, rng))
        else:
            f = w.graph(lambda x, _: _dropout(x, holder[0]))
        argument = rng if how == "argument" else None
        for _ in range(7):
            yield f(x, argument), rng.random((2,))

    world = agree(program)
    assert world.count("recordings") == 1
    assert world.count("replays") == 5


def test_replays_and_eager_calls_mixed(agree):
    """Eager calls in between take their numbers from the same sequence."""

    def program(w):
        rng, x = w.generator(6), w.values(4)
        f = w.graph(_dropout)
        for i in range(12):
            if i % 3 == 2:
                with sw.disabled():
                    yield f(x, rng)
            else:
                yield f(x, rng)
            yield rng.random(i % 4)

    agree(program)


def test_draws_of_many_kinds(same):
    """D test_graph_rng_distributions: all methods that draw replay in step."""

    def f(rng, x):
        return (
            *(rng.random(3), rng.random((2, 2), dtype=np.float32)),
            *(rng.integers(0, 10, size=5), rng.integers(100, size=3, dtype=np.int32)),
            *(rng.normal(1.0, 2.0, size=(2, 3)), rng.uniform(-1.0, 1.0, size=4)),
            rng.random(1, dtype=np.float32) + x,
        )

    same(f, lambda w: (w.generator(8), w.values(1)))


def test_two_generators_do_not_mix(agree):
    """Each generator has its own sequence, whichever is passed."""

    def program(w):
        one, two = w.generator(1), w.generator(2)
        f, x = w.graph(_dropout), w.values(4)
        for i in range(16):
            yield f(x, (one, two)[i // 2 % 2]), one.random(1)

    agree(program)


def test_generators_that_draw_on_streams_of_their_own(agree):
    """D test_graph_rng_concurrent_replay_on_different_streams: each its sequence."""

    def program(w):
        x = w.values(4)
        drawn = [(w.graph(_dropout), w.generator(k), w.stream()) for k in (1, 2, 3)]
        for _ in range(6):
            shown = []
            for f, rng, stream in drawn:
                with stream:
                    shown.append(f(x, rng))
            yield shown

    world = agree(program)
    assert world.count("recordings") == 3
    assert world.count("replays") == 12


def test_a_generator_that_is_replaced(agree):
    """A closed-over generator that is made anew starts anew."""

    def program(w):
        rng = w.generator(9)
        f, x = w.graph(lambda x: _dropout(x, rng)), w.values(4)
        for i in range(12):
            if i % 4 == 0:
                rng = w.generator(9)
            yield f(x), rng.random(1)

    agree(program)


def test_warming_leaves_the_generator_unmoved(rt, bits):
    """`warm` records without taking numbers, or touching arrays."""
    rng, x = rt.generator(4), rt.array(np.ones(4))

    def f(x, rng):
        x += 1
        return _dropout(x, rng)

    g = rt.graph(f)
    before = bits(rng.state, x)
    g.warm(x, rng)
    assert bits(rng.state, x) == before
    assert g.stats().recordings == 1
    replays = g.stats().replays
    found = bits(g(x, rng), x)
    assert g.stats().replays == replays + 1
    y, again = rt.array(np.ones(4)), rt.generator(4)
    assert found == bits(f(y, again), y)


def test_an_extra_recording_leaves_the_generator_unmoved(agree):
    """Variants, escapes and new shapes each draw once a call."""

    def program(w):
        rng, kept = w.generator(10), []
        f = w.graph(_dropout, max_variants=2)
        for i in range(20):
            x = w.values(4 + i % 3)
            kept.append(f(x, rng))
            yield rng.random(1)
        yield kept

    assert agree(program).count("escaped") > 0


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_a_failed_capture_leaves_the_generator_unmoved(rig, bits):
    """D test_graph_rng_after_failed_capture: whichever call fails, none is taken.

    Where there was no memory, the call runs eagerly, and takes its numbers once.
    """
    rt = rig.runtime
    rng, x, ran = rt.generator(12), rt.array(np.ones(4)), 0
    same = rt.generator(12)
    for offset in itertools.count():
        f = rt.graph(_dropout)
        assert bits(f(x, rng)) == bits(_dropout(x, same))
        before = bits(rng.state)
        rig.faulty.fired = None
        rig.faulty.plan = {rig.faulty.position + offset}
        try:
            found = f(x, rng)
        except sw.DriverError:
            found = None
        rig.faulty.plan = ()
        if found is not None and rig.faulty.fired is None:
            break
        if found is not None:
            ran += f.stats().passed_through
            assert bits(found) == bits(_dropout(x, same)), rig.faulty.fired
        elif not gives_back(rig.faulty.fired):
            assert bits(rng.state) == before, rig.faulty.fired
        same.state[...] = rng.state
    assert offset > 5
    assert ran > 0
    _dropout(x, same)
    for _ in range(4):
        assert bits(f(x, rng)) == bits(_dropout(x, same))
    assert bits(rng.state) == bits(same.state)


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_a_capture_that_is_refused_draws_as_eager_does(rt, bits):
    """A call that passes through takes its numbers once."""
    rng, same = rt.generator(13), rt.generator(13)
    x = rt.array(np.ones(4))

    def f(x, rng):
        y, z = _dropout(x, rng)
        return y * random.random() * 0, z

    g = rt.graph(f)
    for _ in range(6):
        assert bits(g(x, rng)[1]) == bits(f(x, same)[1])
    assert bits(rng.state) == bits(same.state)


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_an_exception_after_drawing(rt, bits, calls):
    """A function that draws and then raises has drawn once, as eagerly."""
    rng, same = rt.generator(14), rt.generator(14)
    x, fail = rt.array(np.ones(4)), [False]

    def f(x, rng):
        out = _dropout(x, rng)
        if fail[0]:
            raise KeyError("mine")
        return out

    g = rt.graph(f)
    for _ in range(calls):
        assert bits(g(x, rng)) == bits(f(x, same))
    fail[0] = True
    for _ in range(3):
        with pytest.raises(KeyError, match="mine"):
            g(x, rng)
        with pytest.raises(KeyError):
            f(x, same)
        assert bits(rng.state) == bits(same.state)
    fail[0] = False
    for _ in range(4):
        assert bits(g(x, rng)) == bits(f(x, same))


def test_the_state_may_be_saved_and_restored(agree):
    """D test_graphsafe_set_get_rng_state: writing it back repeats the numbers."""

    def program(w):
        rng, x = w.generator(15), w.values(4)
        f = w.graph(_dropout)
        f(x, rng)
        for _ in range(4):
            if w.plain:
                saved = rng.bit_generator.state
                first = f(x, rng)
                rng.bit_generator.state = saved
            else:
                saved = rng.state.copy()
                first = f(x, rng)
                rng.state[...] = saved
            yield first, f(x, rng)

    agree(program)
