"""Law 15 for eager regions: whichever driver call fails, nothing is lost or leaks."""

from __future__ import annotations

import numpy as np
import pytest

import sapwood as sw
from tests.laws.faults import run


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
    w, x = (trial.array(np.arange(8.0)) for _ in range(2))
    for _ in range(4):
        trial.call(f, _plain, (w, x))
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
    x = trial.array(np.arange(8.0))
    held = [x]
    for _ in range(5):
        held.append(trial.array(np.arange(8.0)))
        trial.call(f, _plain, (held[-1], x))
    for array, values in kept:
        assert trial.read(array).tobytes() == values
    return held, kept


SCENARIOS = {f.__name__.strip("_"): f for f in (_lasting, _kept)}


@pytest.mark.timeout(360)  # hundreds of programs: busy machines need longer
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_call_may_fail(make_rig, name, positions):
    """Each driver call fails once: a `DriverError`, no leak, and eager afterwards."""
    fired, errors, count = run(make_rig(), SCENARIOS[name], None)
    assert (fired, errors) == (None, [])
    assert count > 80
    for position in positions:
        fired, errors, _ = run(make_rig(), SCENARIOS[name], position)
        if fired is None:
            assert errors == []
            break
        about = f"{name}: call {position}, {fired}, was made to fail: {errors}"
        assert len(errors) <= 1, about
        if fired != "create":
            assert [call for _, call in errors] == [fired], about
    assert position >= count


def _goes(w, x):
    w *= 0.5
    h = w + x
    kind = int(h[0]) % 3
    h *= 2
    if kind == 1:
        w += h
        return h * 3, w * 1
    return (h - w, h) if kind else (w * h, h)


def _branches(trial):
    """Ways by what a region returns, each warmed up, recorded and turned to."""

    @sw.eager
    def live(h):
        kind = int(trial.read(h)[0]) % 3
        h *= 2
        return kind

    def fn(w, x):
        w *= 0.5
        h = w + x
        kind = live(h)
        if kind == 1:
            w += h
            return h * 3, w * 1
        return (h - w, h) if kind else (w * h, h)

    f = trial.rt.graph(fn)
    held = []
    for way in (0, 0, 0, 1, 1, 0, 1):
        w, x = (trial.array(np.arange(4.0) + n) for n in (0, way))
        held.append((trial.call(f, _goes, (w, x)), w, x))
    return held, f


@pytest.mark.timeout(600)
def test_every_call_may_fail_where_ways_part(make_rig, positions):
    """Whatever fails, results and what is written are an eager call's."""
    fired, errors, count = run(make_rig(), _branches, None)
    assert (fired, errors) == (None, [])
    assert count > 100
    for position in positions:
        fired, errors, _ = run(make_rig(), _branches, position)
        if fired is None:
            break
        assert len(errors) <= 1, f"call {position}, {fired}, was made to fail: {errors}"
    assert position >= count
