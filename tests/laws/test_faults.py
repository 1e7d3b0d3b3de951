"""Law 15: whichever driver call fails, once, nothing is lost and nothing leaks.

Every scenario is run once to count its driver calls, from its first call to `close`,
and then once for every position with that call failing.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

import sapwood as sw
from sapwood.driver.facade import gives_back
from tests.laws.faults import SURVIVABLE, Trial, run
from tests.support.frameworks import on_host


def _train(w, x, n=1.0):
    w *= 0.5
    w += x
    h = w * n + x
    return h, (h * h).sum()


def _lasting(trial):
    """Warm-up, recording and replays with arguments that stay."""
    f = trial.rt.graph(_train, fullgraph=trial.strict)
    w, x = trial.array(np.arange(8.0)), trial.array(np.ones(8))
    for _ in range(5):
        trial.call(f, _train, (w, x))
    return w, x


def _moving(trial):
    """Copied leaves, copied back where they are written."""
    f = trial.rt.graph(_train, fullgraph=trial.strict)
    x = trial.array(np.ones(8))
    keep = [x]
    for _ in range(5):
        keep.append(trial.array(np.arange(8.0)))
        trial.call(f, _train, (keep[-1], x))
    return keep


def _kept(trial):
    """Variants, escapes, and outputs that live beyond `close`."""
    f = trial.rt.graph(_train, max_variants=2, fullgraph=trial.strict)
    w, x = trial.array(np.arange(8.0)), trial.array(np.ones(8))
    kept = []
    for _ in range(6):
        out = trial.call(f, _train, (w, x))
        if out is not None:
            kept.append((out[0], trial.read(out[0]).tobytes()))
    for array, values in kept:
        assert trial.read(array).tobytes() == values
    return kept


def _evicting(trial):
    """Two shapes for one place; a parent that is evicted under its child."""
    f, g = (
        trial.rt.graph(_double, max_recordings=1, fullgraph=trial.strict),
        trial.rt.graph(_double, fullgraph=trial.strict),
    )
    x = trial.array(np.ones(16_000))
    for part in (x[:8], x):
        for _ in range(3):
            out = trial.call(f, _double, (part,))
            if out is not None:
                trial.call(g, _double, (out[0],))
        del out
    return x


def _double(h):
    return (h * 2,)


def _slots(trial):
    """Bound outputs, a generator, and a runtime that is closed by nobody else."""
    holder, host = {"h": trial.array(np.zeros(8))}, {}
    rng = trial.trying(lambda: trial.rt.generator(3))

    def fn(x):
        holder["h"] = holder["h"] * 0.5 + x
        return (holder["h"] + rng.random((8,)) * 0,)

    def plain(x):
        host["h"] = host["h"] * 0.5 + x
        return (host["h"] + 0.0,)

    f, x = trial.rt.graph(fn, fullgraph=trial.strict), trial.array(np.ones(8))
    for _ in range(4):
        host["h"] = trial.read(holder["h"])
        if trial.call(f, plain, (x,)) is not None:
            assert trial.read(holder["h"]).tobytes() == host["h"].tobytes()
    return holder, x


def _dying(trial):
    """Functions that are dropped, steps, and warming."""
    w, x = trial.array(np.arange(8.0)), trial.array(np.ones(8))
    for _ in range(2):
        f = trial.rt.graph(_train, fullgraph=trial.strict)
        for _ in range(2):
            before = trial.read(w).tobytes()
            try:
                f.warm(w, x)
            except sw.DriverError as error:
                trial.note(error)
            else:
                assert trial.read(w).tobytes() == before
        for _ in range(2):
            trial.trying(lambda: trial.rt.step().__enter__())
            trial.call(f, _train, (w, x))
        del f
        gc.collect()
    return w, x


def _streams(trial):
    """Two streams, and a function that forks."""
    one, two = (trial.trying(trial.rt.stream) for _ in range(2))

    def fn(w, x):
        with two:
            h = x * 2
        w += h
        return w - x, h

    def plain(w, x):
        h = x * 2
        w += h
        return w - x, h

    f = trial.rt.graph(fn, fullgraph=trial.strict)
    w, x = trial.array(np.arange(8.0)), trial.array(np.ones(8))
    for i in range(5):
        with (one, two)[i % 2]:
            trial.call(f, plain, (w, x))
    return w, x


SCENARIOS = {
    f.__name__.strip("_"): f
    for f in (_lasting, _moving, _kept, _evicting, _slots, _dying, _streams)
}


@pytest.mark.timeout(360)  # hundreds of programs: busy machines need longer
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_call_may_fail(make_rig, name, positions, record_property):
    """Each driver call fails once: a `DriverError`, no leak, and eager afterwards."""
    scenario = SCENARIOS[name]
    _, errors, count = run(make_rig(), scenario, None)
    assert errors == []
    failed = 0
    for position in positions:
        fired, errors, _ = run(make_rig(), scenario, position)
        if fired is None:
            assert errors == []
            break
        failed += 1
        about = f"{name}: call {position}, {fired}, was made to fail"
        assert len(errors) <= 1, about
        if fired not in SURVIVABLE:
            assert errors, f"{about}, and nobody was told"
            assert errors[0][1] == fired, about
    assert position >= count
    record_property("positions", failed)
    print(f"{name}: {failed} positions")  # noqa: T201 - the law asks for it


@pytest.mark.timeout(360)  # hundreds of programs: busy machines need longer
@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("name", ["lasting", "slots"])
def test_a_recording_that_fails_is_an_eager_run(make_rig, name, positions):
    """Unless ``fullgraph=True`` all is as eager, whichever call made it fail."""
    spared = 0
    for position in positions:
        fired, _, _ = run(make_rig(), SCENARIOS[name], position)
        rig = make_rig()
        again, errors, _ = run(rig, SCENARIOS[name], position, strict=False)
        assert len(errors) <= 1, f"{name}: call {position}, {fired}"
        spared += again is not None and not errors
        if fired is None:
            break
    assert spared


@pytest.mark.every_framework
def test_a_failed_replay_changes_nothing(rig, bits):
    """A launch that fails has run nothing: memory and statistics are as before."""
    rt = rig.runtime
    f = rt.graph(_train)
    w, x = rt.array(np.arange(8.0)), rt.array(np.ones(8))
    for _ in range(5):
        f(w, x)
    before = bits(w, x), rt.memory_stats(), f.stats()
    rig.faulty.plan = {rig.faulty.position}
    with pytest.raises(sw.DriverError) as caught:
        f(w, x)
    assert caught.value.call == "launch_graph"
    del caught
    gc.collect()
    assert (bits(w, x), rt.memory_stats(), f.stats()) == before
    plain = w * 1
    out = f(w, x)
    assert bits(*out) == bits(*_train(plain, x))
    assert bits(w) == bits(plain)


@pytest.mark.every_framework
def test_a_failed_aim_is_not_remembered(rig):
    """A leaf whose copy could not be redirected is redirected by the next call."""
    rt = rig.runtime
    f, arrays = rt.graph(lambda x: x * 2), []
    for i in range(6):
        arrays.append(rt.array(np.full(4, float(i))))
        f(arrays[-1])
    rig.faulty.plan = {rig.faulty.position}
    with pytest.raises(sw.DriverError) as caught:
        f(arrays[0])
    assert caught.value.call == "set_op"
    rig.faulty.plan = {rig.faulty.position + 1}
    with pytest.raises(sw.DriverError):
        f(arrays[1])
    for i, x in enumerate(arrays):
        assert on_host(f(x)).tolist() == [i * 2] * 4


def test_two_calls_in_a_row_may_fail(make_rig):
    """A call that fails while the first failure is cleaned up leaks nothing either."""
    _, _, count = run(make_rig(), _lasting, None)
    for position in range(0, count, 5):
        rig = make_rig()
        trial = Trial(rig)
        start = rig.faulty.position
        rig.faulty.plan = {start + position, start + position + 1}
        try:
            held = _lasting(trial)
        except sw.DriverError as error:
            trial.note(error)
            held = None
        try:
            rig.runtime.close()
        except sw.DriverError as error:
            trial.note(error)
        rig.faulty.plan = ()
        del held
        gc.collect()
        rig.finish()
        assert trial.errors or rig.faulty.fired in SURVIVABLE


def test_release_is_performed_and_then_reported(rig):
    """The rule that the others rest on: what gives back has given back."""
    assert gives_back("unmap")
    assert gives_back("destroy_exec")
    assert not gives_back("launch_graph")
    extent = rig.faulty.create(rig.checked.abilities.page)
    rig.faulty.plan = {rig.faulty.position}
    held = rig.device.live_handles()["extents"]
    with pytest.raises(sw.DriverError):
        rig.faulty.release(extent)
    assert rig.device.live_handles()["extents"] == held - 1
