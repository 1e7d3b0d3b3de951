"""The template of a framework refuses what no replay could repeat, by line and name."""

from __future__ import annotations

import numpy as np
import pytest

import sapwood as sw
from tests.support import minimal
from tests.support.frameworks import MINIMAL, make_rig_of


@pytest.fixture
def rig():
    """Return a runtime of the template's buffers, leak-checked in the end."""
    made = make_rig_of(MINIMAL)
    yield made
    made.finish()


@pytest.fixture
def rt(rig):
    return rig.runtime


REFUSED = {
    "a value is read on the host": lambda x, _: x * float(np.asarray(x)[0]),
    "host data enters": lambda x, array: x + array([1.0, 2.0]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_replay_could_repeat_is_refused_on_call_one(rt, what):
    """The warm-up says so: the capture would come too late for the user to learn it."""
    fn, x = REFUSED[what], rt.array([1.0, 2.0])
    f = rt.graph(lambda x: fn(x, rt.array), fullgraph=True)
    with pytest.raises(sw.CaptureError, match=r"on the host|host data"):
        f(x)


def test_a_buffer_of_another_runtime_is_refused(rt):
    """Its addresses may be anybody's here."""
    other = make_rig_of(MINIMAL)
    f, x, y = rt.graph(lambda x: x * 2), rt.array([1.0]), other.runtime.array([1.0])
    f(x)
    try:
        with pytest.raises(sw.MisuseError, match="another runtime"):
            minimal.integration(rt._device).refuse(y)
        with pytest.raises(sw.MisuseError, match="two runtimes"):
            x + y
    finally:
        del y
        other.finish()


def test_a_buffer_is_told_by_its_own_name(rt):
    """``explain()`` says ``float64[2]``, which is what the integration says."""
    f = rt.graph(lambda x: x * 2)
    f(rt.array([1.0, 2.0]))
    assert "x: float64[2]" in f.explain()
