"""Law 15 for eager regions: whichever driver call fails, nothing is lost or leaks."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import sapwood as sw


class Trial:
    """One run of a scenario; every call that works equals NumPy from the state left."""

    strict = True

    def __init__(self, rig):
        self.rt, self.errors, self.calls = rig.runtime, [], 0

    def trying(self, act):
        """Return ``act()``, doing it again if it fails."""
        try:
            return act()
        except sw.DriverError as error:
            self.errors.append((type(error), error.call))
            return act()

    def read(self, array):
        return self.trying(lambda: np.asarray(array))

    def call(self, f, plain, *arrays):
        """Call ``f`` and compare; return the result, or None where it failed."""
        left = [self.read(array) for array in arrays]
        try:
            result = f(*arrays)
        except sw.DriverError as error:
            self.errors.append((type(error), error.call))
            return None
        expected = plain(*left)
        for found, wanted in zip(result, expected, strict=True):
            assert self.read(found).tobytes() == np.asarray(wanted).tobytes()
        for array, host in zip(arrays, left, strict=True):
            assert self.read(array).tobytes() == host.tobytes()
        return result


def _plain(w, x):
    w *= 0.5
    h = w + x
    h *= 2
    w += h
    y = h + h.sum()
    return y * w, h


def _lasting(trial):
    """Warm-up, recording and replays with arguments that stay."""

    @sw.eager
    def live(h):
        h *= 2
        return h + h.sum()

    def fn(w, x):
        w *= 0.5
        h = w + x
        y = live(h)
        w += h
        return y * w, h

    f = trial.rt.graph(fn, fullgraph=trial.strict)
    w, x = (trial.trying(lambda: trial.rt.array(np.arange(8.0))) for _ in range(2))
    for _ in range(4):
        trial.call(f, _plain, w, x)
    return w, x


def _kept(trial):
    """Variants and escapes, arguments that move, arrays that an eager region keeps."""
    kept = []

    @sw.eager
    def live(h):
        h *= 2
        kept.append((h, trial.read(h).tobytes()))
        return h + h.sum()

    def fn(w, x):
        w *= 0.5
        h = w + x
        y = live(h)
        w += h
        return y * w, h

    f = trial.rt.graph(fn, max_variants=1, fullgraph=trial.strict)
    x = trial.trying(lambda: trial.rt.array(np.arange(8.0)))
    held = [x]
    for _ in range(5):
        held.append(trial.trying(lambda: trial.rt.array(np.arange(8.0))))
        trial.call(f, _plain, held[-1], x)
    for array, values in kept:
        assert trial.read(array).tobytes() == values
    return held, kept


SCENARIOS = {f.__name__.strip("_"): f for f in (_lasting, _kept)}


def _run(rig, scenario, position):
    """Run a scenario with one call failing; return what failed, and the errors."""
    trial = Trial(rig)
    start = rig.faulty.position
    rig.faulty.plan = () if position is None else {start + position}
    held = scenario(trial)
    gc.collect()
    try:
        rig.runtime.close()
    except sw.DriverError as error:
        trial.errors.append((type(error), error.call))
    rig.faulty.plan = ()
    assert rig.runtime.closed
    del held
    gc.collect()
    fired = rig.faulty.fired
    rig.finish()
    return fired, trial.errors


@pytest.mark.timeout(360)  # hundreds of programs: busy machines need longer
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_call_may_fail(make_rig, name, positions):
    """Each driver call fails once: a `DriverError`, no leak, and eager afterwards."""
    assert _run(make_rig(), SCENARIOS[name], None) == (None, [])
    for position in positions:
        fired, errors = _run(make_rig(), SCENARIOS[name], position)
        if fired is None:
            assert errors == []
            break
        about = f"{name}: call {position}, {fired}, was made to fail: {errors}"
        assert len(errors) <= 1, about
        if fired != "create":
            assert [call for _, call in errors] == [fired], about
    assert position > 80
