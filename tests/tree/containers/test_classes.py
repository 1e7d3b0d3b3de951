"""Laws of what is known of classes: it is right in every thread, and keeps none."""

from __future__ import annotations

import gc
import weakref
from collections import namedtuple
from dataclasses import make_dataclass

import pytest

from sapwood.errors import MisuseError
from sapwood.tree.nests import containers
from sapwood.tree.nests.containers import container_of, flatten, unflatten

MANY = 4200


def _leaf():
    return type("Leaf", (), {})


def _data():
    return make_dataclass("Data", ["x"])


def _named():
    return namedtuple("Named", ["x"])  # noqa: PYI024 - as users write them


def _nothing(_):
    return False


@pytest.mark.parametrize("make", [_leaf, _data, _named])
def test_a_class_is_not_kept(make):
    """Nor what its methods close over, once nobody else has it."""
    cls = make()
    value = cls() if make is _leaf else cls([1])
    leaves, structure = flatten([value], _nothing)
    assert leaves == ([value] if make is _leaf else [1])
    if make is not _leaf:
        assert unflatten(structure, leaves) == [value]
    gone = weakref.ref(cls)
    del cls, value, leaves, structure
    gc.collect()
    assert gone() is None


def test_a_class_in_the_place_of_one_that_went_is_known_anew():
    """Classes are told apart by where they are, while they are there."""
    for turn in range(50):
        cls = (_leaf, _data, _named)[turn % 3]()
        assert (container_of(cls) is None) is (turn % 3 == 0)
        del cls
        gc.collect()


def test_no_trace_is_left_of_many_classes():
    """What is remembered of them is bounded by those that live."""
    for _ in range(300):
        container_of(_leaf())
    gc.collect()
    container_of(_leaf())
    assert len(containers._known) < 250
    assert len(containers._watched) < 2 * 250 + 64


def test_containers_are_known_while_classes_go():
    """Whoever runs in between, such as a finaliser or another thread, sees them."""
    told = []

    def look():
        try:
            told.append(flatten([{"a": [1]}], _nothing)[0])
        except (KeyError, MisuseError) as error:
            told.append(error)

    cls = _data()
    weakref.finalize(container_of(cls).flatten, look)
    classes = [_leaf() for _ in range(MANY)]
    for each in classes:
        container_of(each)
    del cls, classes, each
    gc.collect()
    assert told == [[1]]
