"""What is made ready by a call is no part of what is recorded of it."""

from __future__ import annotations

import numpy as np
import pytest

from sapwood import CaptureError
from sapwood.runtime.core import Runtime
from sapwood.tree.record import recorder
from sapwood.tree.run import eagerly, making
from sapwood.tree.watch.session import Session, Unready, entered


@pytest.fixture
def rt():
    with Runtime(device="emulated") as made:
        yield made


@pytest.fixture
def preparing(monkeypatch):
    """Return what makes so many warm-ups prepare something, from now on."""

    def prepare(calls):
        left = [calls]

        def session(**options):
            made = Session(**options)
            left[0] -= 1
            made.prepares = left[0] >= 0
            return made

        monkeypatch.setattr(eagerly, "Session", session)

    return prepare


@pytest.fixture
def unready(monkeypatch):
    """Return what has so many recordings end, after the function ran."""

    def end(calls):
        left = [calls]

        def record(order, recordings):
            made = recorder.record(order, recordings)
            left[0] -= 1
            if left[0] < 0:
                return made
            recordings.discard(made.node)
            raise Unready("it compiles")

        monkeypatch.setattr(making, "record", record)

    return end


def test_a_call_that_prepares_is_no_warm_up(rt, preparing):
    """The next call is watched, too: what it does is what is compared."""
    preparing(2)
    f = rt.graph(lambda x: x * 2 + 1)
    for value in range(6):
        x = rt.array(np.full(4, float(value)))
        assert np.asarray(f(x)).tolist() == [2.0 * value + 1] * 4
    stats = f.stats()
    assert (stats.warmups, stats.recordings, stats.replays) == (3, 1, 2)


def test_what_is_written_while_preparing_is_not_refused(rt, preparing):
    """A cache that is filled once is as the next call finds it."""
    preparing(1)
    cache = {}

    def fn(x):
        cache.setdefault("factor", 3.0)
        return x * cache["factor"]

    f = rt.graph(fn)
    for value in range(5):
        x = rt.array(np.full(4, float(value)))
        assert np.asarray(f(x)).tolist() == [3.0 * value] * 4
    assert f.stats().recordings == 1


@pytest.mark.parametrize("times", [1, 2])
def test_a_capture_that_is_not_ready_runs_eagerly(rt, unready, times):
    """The call is done, once, by another warm-up; a later one is recorded."""
    unready(times)
    f = rt.graph(lambda x, total: total.__iadd__(x))
    total = rt.array(np.zeros(4))
    for value in range(8):
        f(rt.array(np.full(4, float(value))), total)
    assert np.asarray(total).tolist() == [float(sum(range(8)))] * 4
    stats = f.stats()
    assert (stats.warmups, stats.recordings) == (1 + times, 1)
    assert stats.replays == 8 - 2 - times


def test_warming_takes_what_it_takes(rt, preparing):
    """`warm` ends with a recording where the first call prepares."""
    preparing(1)
    f = rt.graph(lambda x: x + 1)
    x = rt.array(np.zeros(4))
    f.warm(x)
    assert f.stats().recordings == 1
    assert np.asarray(f(x)).tolist() == [1.0] * 4
    assert f.stats().replays == 1


def test_it_is_an_error_with_a_remedy():
    """It is a capture error like others, and stays what it is without a traceback."""
    session = Session(tolerant=True)
    with entered(session), pytest.raises(CaptureError, match="Call it again") as caught:
        session.unready("torch compiles")
    assert type(caught.value) is Unready
    assert type(session.unrecordable) is Unready
    assert session.unrecordable is not caught.value
    assert __file__ in str(caught.value)
