"""Functions of torch's that are held are values: no writes, and not each other."""

from __future__ import annotations

import numpy as np
import pytest

import sapwood as sw

torch = pytest.importorskip("torch")

ONE, OTHER = torch.relu, torch.sigmoid


class Layer:
    """Holds its activation as modules do."""

    def __init__(self, act):
        self.act = act
        self.table = {"act": act}


def _closed_over(act):
    return lambda x: x * (2.0 if act is ONE else 3.0)


def _of_an_object(act):
    layer = Layer(act)
    return lambda x: x * (2.0 if layer.act is ONE else 3.0)


def _in_a_table(act):
    layer = Layer(act)
    return lambda x: x * (2.0 if layer.table["act"] is ONE else 3.0)


def _by_default(act):
    def fn(x, act=act):
        return x * (2.0 if act is ONE else 3.0)

    return fn


@pytest.fixture
def rt():
    with sw.Runtime("emulated") as made:
        yield made


@pytest.mark.parametrize(
    "holding", [_closed_over, _of_an_object, _in_a_table, _by_default]
)
@pytest.mark.parametrize("act", [ONE, OTHER])
def test_what_is_held_is_no_write(rt, holding, act):
    """A function that reads one is recorded, and replayed."""
    f, x = rt.graph(holding(act)), rt.array(np.ones(3))
    expected = [2.0 if act is ONE else 3.0] * 3
    for _ in range(6):
        assert np.asarray(f(x)).tolist() == expected
    assert f.stats().recordings == 1
    assert f.stats().replays > 2


def test_another_is_seen(rt):
    """In a slot, and as an argument: each has recordings of its own."""
    layer, x = Layer(ONE), rt.array(np.ones(3))
    f = rt.graph(lambda x, act: x * (2.0 if layer.act is ONE else 3.0) + (act is ONE))
    for _ in range(3):
        for held in (ONE, OTHER):
            for act in (ONE, OTHER):
                layer.act = held
                expected = (2.0 if held is ONE else 3.0) + (act is ONE)
                assert np.asarray(f(x, act)).tolist() == [expected] * 3
    assert f.stats().passed_through == 0
