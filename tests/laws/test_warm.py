"""`warm` records ahead of the first call and leaves everything as it was."""

from __future__ import annotations

import numpy as np
import pytest

import sapwood as sw


class Box:
    def __init__(self, h):
        self.h = h


def _counts(f):
    stats = f.stats()
    return stats.warmups, stats.recordings, stats.replays


def test_the_first_call_after_warming_replays(rig):
    """For each of several signatures: no recording, no allocation, one launch."""
    rt = rig.runtime
    f = rt.graph(lambda x: (x * 2, x.sum()))
    arrays = [rt.array(np.arange(float(n))) for n in (3, 4, 5)]
    for i, x in enumerate(arrays, 1):
        f.warm(x)
        assert _counts(f) == (i, i, 0)
    for i, x in enumerate(arrays, 1):
        rig.recorded.reset()
        found = f(x)
        assert rig.recorded.counts() == {"launch_graph": 1}
        assert _counts(f) == (3, 3, i)
        assert np.asarray(found[0]).tolist() == (np.arange(x.size) * 2.0).tolist()
        del found


def test_warming_again_changes_nothing(rt):
    """What is recorded already is not recorded again, nor run again."""
    f, x = rt.graph(lambda x: x + 1), rt.array(np.zeros(3))
    for _ in range(3):
        f.warm(x)
        assert _counts(f)[:2] == (1, 1)
    assert np.asarray(f(x)).tolist() == [1, 1, 1]
    f.warm(x)
    assert _counts(f)[:2] == (1, 1)


@pytest.mark.minimal
def test_warming_after_calls_of_another_signature(rt):
    """Calls that were made before do not count as warmth for other arguments."""
    f, x, y = rt.graph(lambda x: x + 1), rt.array(np.zeros(3)), rt.array(np.ones(4))
    for _ in range(4):
        f(x)
    before = _counts(f)
    f.warm(y)
    assert _counts(f)[:2] == (before[0] + 1, before[1] + 1)
    replays = f.stats().replays
    f(y)
    assert f.stats().replays == replays + 1


def test_new_ambient_values_are_warmed_too(rt):
    """Another flag is another recording, which `warm` makes as a call would."""
    box = Box(rt.array(np.ones(3)))
    box.training = True
    f = rt.graph(lambda x: x * box.h if box.training else x)
    x = rt.array(np.arange(3.0))
    for i, box.training in enumerate((True, False), 1):
        f.warm(x)
        assert _counts(f)[:2] == (i, i)
    for i, box.training in enumerate((True, False), 1):
        f(x)
        assert _counts(f) == (2, 2, i)


def test_warming_leaves_all_arrays_as_they_are(rt, bits):
    """Arguments, ambient arrays, slots and generators: bytes, objects and all."""
    box, weight = Box(rt.array(np.zeros(3))), rt.array(np.ones(3))
    rng = rt.generator(5)

    def fn(x, state):
        x += 1
        state[1:] *= 2
        np.add(weight, x, out=weight)
        box.h = box.h + rng.random(3)
        return x, box.h

    f = rt.graph(fn)
    x, state = rt.array(np.arange(3.0)), rt.array(np.arange(4.0))
    held, before = box.h, bits(x, state, weight, box.h, rng.random(3))
    rng = rt.generator(5)
    f.warm(x, state[:3])
    f.warm(x, state)
    assert box.h is held
    assert bits(x, state, weight, box.h, rng.random(3)) == before
    rng = rt.generator(5)
    with sw.disabled():
        expected = bits(f(x, state), state, weight)
    assert expected != before


def test_warm_calls_equal_eager_ones(agree):
    """A program that warms gives what the same program gives without."""

    def program(w):
        box, rng = Box(w.values(4)), w.generator(3)

        def fn(x, n):
            x *= 0.5
            box.h = x[::-1] + n
            return box.h * rng.random(4), x

        f = w.graph(fn, max_variants=2)
        x = w.values(4)
        for n in (1, 2.0, True):
            for _ in range(4):
                if w.replayed:
                    f.warm(x, n)
                yield f(x, n), x, box.h

    world = agree(program)
    assert world.count("replays") >= 9


def test_an_output_and_a_donated_array_survive_warming(rt):
    """What would be stale after a call is not after `warm`."""
    make = rt.graph(lambda x: x * 3)
    f = rt.graph(lambda state: state + 1, donate=("state",))
    x = rt.array(np.arange(3.0))
    state, mine = make(x), rt.array(np.arange(3.0))
    f.warm(state)
    f.warm(mine)
    assert np.asarray(state).tolist() == [0, 3, 6]
    assert np.asarray(mine).tolist() == [0, 1, 2]
    assert np.asarray(f(state)).tolist() == [1, 4, 7]
    with pytest.raises(sw.StaleOutput, match="donated"):
        np.asarray(state)


def test_warming_what_raises(rt):
    """The user's exception comes out unchanged; arrays are as they were."""

    def fn(x):
        x += 1
        raise KeyError("mine")

    f, x = rt.graph(fn), rt.array(np.arange(3.0))
    for _ in range(3):
        with pytest.raises(KeyError, match="mine"):
            f.warm(x)
        assert np.asarray(x).tolist() == [0, 1, 2]
    assert f.stats().recordings == 0


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_warming_what_cannot_be_recorded(rt):
    """It is a `CaptureError` as in a call, or ends where calls pass through."""

    def fn(x):
        x += 1
        return len(str(x))

    x = rt.array(np.arange(3.0))
    with pytest.raises(sw.CaptureError, match="test_warm"):
        rt.graph(fn, fullgraph=True).warm(x)
    assert np.asarray(x).tolist() == [0, 1, 2]
    f = rt.graph(fn)
    f.warm(x)
    f.warm(x)
    assert np.asarray(x).tolist() == [0, 1, 2]
    assert f.stats().recordings == 0
    assert f(x) == len("[1. 2. 3.]")


def test_methods_are_warmed_each_for_its_object(rt):
    """Two instances have recordings of their own, and so warmth of their own."""

    class Layer:
        def __init__(self, k):
            self.w = rt.array(np.full(3, k))

        @rt.graph
        def forward(self, x):
            return x * self.w

    one, two, x = Layer(2.0), Layer(3.0), rt.array(np.arange(3.0))
    one.forward.warm(x)
    assert _counts(one.forward) == (1, 1, 0)
    assert _counts(two.forward) == (0, 0, 0)
    two.forward.warm(x)
    assert np.asarray(one.forward(x)).tolist() == [0, 2, 4]
    assert np.asarray(two.forward(x)).tolist() == [0, 3, 6]
    assert _counts(one.forward) == _counts(two.forward) == (1, 1, 1)


def test_a_full_function_is_warmed_as_far_as_it_goes(rt):
    """With room for one recording, warming another signature ends, and is right."""
    f = rt.graph(lambda x: x * 2, max_recordings=1)
    x, y = rt.array(np.ones(3)), rt.array(np.ones(4))
    f.warm(x)
    f.warm(y)
    for array in (x, y, x, y):
        assert np.asarray(f(array)).tolist() == [2.0] * array.size
    assert f.stats().recordings - f.stats().evicted == 1


def test_warming_on_another_stream(rt):
    """What is restored is restored in the order of whatever stream that was."""
    f, x = rt.graph(lambda x: np.add(x, 1, out=x)), rt.array(np.zeros(8))
    first, second = rt.stream(), rt.stream()
    with first:
        x += 1
    with second:
        f.warm(x)
    with first:
        x *= 5
        f(x)
    assert np.asarray(x).tolist() == [6.0] * 8
    assert _counts(f) == (1, 1, 1)


def test_warming_where_nothing_is_recorded(agree):
    """Inside a graphed function, and while disabled, `warm` does nothing."""

    def program(w):
        g = w.graph(lambda x: np.add(x, 1, out=x))

        def fn(x):
            if not w.plain:
                g.warm(x)
            return x + g(x)

        f, x = w.graph(fn), w.values(3)
        for _ in range(4):
            yield f(x), x
        if w.name == "replayed":
            with sw.disabled():
                g.warm(x)
            assert _counts(g) == (0, 0, 0)
        yield x, x

    agree(program)


def test_arguments_that_no_call_is_recorded_for(rt):
    """Nothing is run, and nothing raised that no call raises: a warning says why."""
    f = rt.graph(lambda x: x * 2)
    with pytest.warns(sw.GraphSkipWarning, match="is an argument|host"):
        f.warm(np.ones(3))
    assert _counts(f) == (0, 0, 0)
    assert np.asarray(f(np.ones(3))).tolist() == [2, 2, 2]
    with pytest.raises((TypeError, sw.CaptureError)):
        rt.graph(lambda x: x * 2, fullgraph=True).warm(np.ones(3))
    with pytest.raises(TypeError, match="argument"):
        f.warm()


class _Growing:
    """What it computes with is never what it was."""

    rate = 1.0


def test_a_function_that_is_never_alike_says_so(rt):
    """Nothing was recorded, and all is as before: nobody would notice."""
    state = _Growing()

    def fn(x):
        state.rate = state.rate * 2 + 1
        return x * state.rate

    f = rt.graph(fn)
    with pytest.warns(sw.GraphSkipWarning, match="eagerly"):
        f.warm(rt.array(np.ones(3)))
    assert _counts(f)[1:] == (0, 0)
    assert state.rate == 1.0
