"""Results that have no end, and objects that recordings cannot be kept for: eager."""

from __future__ import annotations

import dataclasses

import pytest

import sapwood as sw

CALLS = 6


def _itself(x):
    made = {"value": x * 2}
    made["self"] = made
    return made


def _deep(x):
    made = x * 2
    for _ in range(300):
        made = {"value": made}
    return made


def _region(x):
    return made_apart(x)["value"]


@sw.eager
def made_apart(x):
    return {"value": _itself(x)["value"], "all": _itself(x)}


def _innermost(made):
    while isinstance(made, dict):
        made = made["value"]
    return made


@pytest.mark.parametrize("fn", [_itself, _deep, _region])
@pytest.mark.parametrize("donate", [False, True])
def test_a_result_without_an_end_is_given(rt, fn, donate):
    """It cannot be made anew, and a warning says so."""
    f = rt.graph(fn, donate="x" if donate else ())
    with pytest.warns(sw.GraphSkipWarning):
        found = [_innermost(f(rt.array([1.0, 2.0]))).tolist() for _ in range(CALLS)]
    assert found == [[2.0, 4.0]] * CALLS
    assert f.stats().replays == 0


@dataclasses.dataclass(slots=True)
class Slotted:
    rate: float


def test_methods_of_objects_that_nobody_can_refer_to_weakly_are_eager(rt):
    """Their recordings could not end with the object."""
    Slotted.step = rt.graph(lambda self, x: x * self.rate)
    with pytest.warns(sw.GraphSkipWarning, match="weakref_slot=True") as told:
        found = [Slotted(rate).step(rt.array([1.0])).tolist() for rate in (2.0, 3.0)]
    assert (len(told), found) == (1, [[2.0], [3.0]])
    Slotted.step = rt.graph(lambda self, x: x * self.rate, fullgraph=True)
    with pytest.raises(sw.CaptureError, match="__slots__ without __weakref__"):
        Slotted(2.0).step(rt.array([1.0]))


class Unhashable(type):
    """A class of classes that have no hash."""

    def __eq__(cls, other):
        return cls is other

    __hash__ = None


class Rate(metaclass=Unhashable):
    rate = 2.0


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_an_object_of_a_class_without_a_hash_is_passed(rt):
    """What it is of is no key of anything."""
    f = rt.graph(lambda x, of: x * of.rate)
    for _ in range(CALLS):
        assert f(rt.array([1.0]), Rate()).tolist() == [2.0]
