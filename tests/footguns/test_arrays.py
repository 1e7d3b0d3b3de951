"""What happens to arrays: where they come from, who writes them, how long they live."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import sapwood as sw


def test_host_arrays_are_refused(rt):
    """A NumPy array as an argument has the call run eagerly, and warns.

    It would have to be copied to the device by every call, behind your back. Say so
    with `rt.array`, once, outside. With ``fullgraph=True`` it is a `TypeError`.
    """
    f = rt.graph(lambda x: x + 1)
    with pytest.warns(sw.GraphSkipWarning, match="a host array of float64"):
        assert f(np.zeros(3)).tolist() == [1, 1, 1]
    f = rt.graph(lambda x: x + 1, fullgraph=True)
    with pytest.raises(TypeError, match="array"):
        f(np.zeros(3))
    assert np.asarray(f(rt.array(np.zeros(3)))).tolist() == [1, 1, 1]


def test_bringing_host_data_that_nobody_compares_is_refused(rt):
    """`rt.array(...)` of a large array's part would be the old data in replays.

    Bring it outside and pass it in. What the function makes itself, of plain values
    (`np.ones(3)`) or on the device (`np.arange(..., like=x)`), is fine.
    """
    x, large = rt.array(np.zeros(3)), np.ones(100_000)
    with pytest.raises(sw.CaptureError, match="host"):
        rt.graph(lambda x: x + rt.array(large[:3]), fullgraph=True)(x)
    f = rt.graph(
        lambda x: x + rt.array(np.ones(3)) + np.arange(3, like=x), fullgraph=True
    )
    for _ in range(4):
        assert np.asarray(f(x)).tolist() == [1, 2, 3]


def test_every_constant_is_recorded_anew(rt):
    """A Python number is part of the signature: each new value records again.

    Pass numbers that change with every call as device arrays of no dimensions.
    """
    f, x = rt.graph(lambda x, rate: x * rate), rt.array(np.ones(2))
    for step in range(5):
        f(x, 0.1 * step)
        f(x, 0.1 * step)
    assert f.stats().recordings == 5
    g = rt.graph(lambda x, rate: x * rate)
    rate = rt.array(np.float64(0.0))
    for step in range(5):
        rate[...] = 0.1 * step
        assert np.asarray(g(x, rate)).tolist() == [0.1 * step] * 2
    assert g.stats().recordings == 1


def test_one_and_true_and_one_point_zero_differ(rt):
    """1, True and 1.0 are equal in Python, and three recordings here.

    They give different dtypes; so do not mix them for one parameter without need.
    """
    f, x = rt.graph(lambda x, n: x * n), rt.array(np.ones(2, dtype=np.int8))
    kinds = [str(f(x, n).dtype) for n in (1, True, 1.0) * 2]
    assert kinds == ["int8", "int8", "float64"] * 2
    assert f.stats().recordings == 3


def test_closed_over_numbers_that_change_record_anew(rt):
    """A learning rate in a closure or on `self` is watched: a new value is a miss.

    It is never stale. But a schedule that changes it in every step never replays;
    keep it in a device array then.
    """
    rate = 0.5
    f, x = rt.graph(lambda x: x * rate), rt.array(np.ones(2))
    for rate in (0.5, 0.25, 0.125):
        for _ in range(2):
            assert np.asarray(f(x)).tolist() == [rate] * 2
    assert f.stats().replays == 0
    assert "rate" in f.explain()


def test_donated_arrays_end(rt):
    """What is passed to a parameter in ``donate=`` may not be used afterwards.

    Its memory may be the result's by then. Using it is a `StaleOutput`.
    """
    make, use = rt.graph(lambda x: x + 1), rt.graph(lambda h: h * 2, donate=("h",))
    x = rt.array(np.zeros(2))
    for _ in range(4):
        h = make(x)
        y = use(h)
        with pytest.raises(sw.StaleOutput, match="donated"):
            h + 1
        assert np.asarray(y).tolist() == [2, 2]


def test_outputs_end_with_the_next_step(rt):
    """Inside `rt.step()` the outputs of earlier iterations may not be used.

    Name what goes on in ``keep=``, or leave `step` away: then outputs live for as
    long as they are held, and calls get other memory where they must.
    """
    f, x = rt.graph(lambda x: x + 1), rt.array(np.zeros(2))
    with rt.step():
        loss = f(x)
    with rt.step(), pytest.raises(sw.StaleOutput, match="step"):
        float(loss[0])
    state = f(x)
    with rt.step(keep=state):
        assert np.asarray(state).tolist() == [1, 1]


def test_keeping_outputs_costs_recordings_then_copies(rt):
    """Outputs that are kept are never overwritten; that takes memory.

    While up to ``max_variants`` calls' outputs are held, each has a recording of its
    own. Beyond that, outputs are copied out. `stats()` and `explain()` say so.
    """
    f, x = rt.graph(lambda x: x + 1, max_variants=2), rt.array(np.zeros(2))
    held = [f(x) for _ in range(8)]
    stats = f.stats()
    assert stats.recordings == 3
    assert stats.escaped > 0
    assert {tuple(np.asarray(y).tolist()) for y in held} == {(1.0, 1.0)}


def test_a_new_array_per_call_is_copied(rt):
    """An argument that is elsewhere in every call is copied in by every call.

    Write into one array (``x[...] = new``) instead, and it is read in place.
    """
    f, g = rt.graph(lambda x: x + 1), rt.graph(lambda x: x + 1)
    batches = [rt.array(np.full(64, float(i))) for i in range(8)]
    for batch in batches:
        f(batch)
    assert f.stats().copied_bytes > 0
    buffer = rt.array(np.zeros(64))
    for batch in batches:
        buffer[...] = batch
        g(buffer)
    assert g.stats().copied_bytes == 0


def test_an_output_is_not_a_fresh_copy_of_its_input(rt):
    """A function that returns its argument returns that very memory.

    As the plain function would. Copy where you need a copy.
    """
    f, x = rt.graph(lambda x: x[1:]), rt.array(np.zeros(3))
    for i in range(4):
        view = f(x)
        view += 1
        assert np.asarray(x).tolist() == [0, i + 1, i + 1]


def test_arrays_that_nobody_names_are_refused(rt):
    """An array that a function gets from where nothing names it cannot be watched.

    It could be replaced without notice. Pass it as an argument, or name it.
    """
    hidden = itertools.repeat(rt.array(np.ones(2)))
    x = rt.array(np.zeros(2))
    f = rt.graph(lambda x: x + hidden.__next__(), fullgraph=True)
    with pytest.raises(sw.CaptureError, match="argument"):
        for _ in range(2):
            f(x)


def test_a_change_of_shape_records_anew(rt):
    """Every shape, dtype and memory order is a signature of its own.

    The last batch of an epoch, smaller than the rest, is a second recording; shapes
    that never come again cost a warm-up each. They share memory, and their number is
    bounded by ``max_recordings``.
    """
    f = rt.graph(lambda x: x * 2)
    x = rt.array(np.zeros((4, 6)))
    for _ in range(3):
        for view in (x, x[:3], x.T):
            f(view)
    stats = f.stats()
    assert (stats.warmups, stats.recordings, stats.replays) == (3, 3, 3)
