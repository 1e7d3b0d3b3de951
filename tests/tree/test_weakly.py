"""References that keep nothing alive, and what is kept all the same."""

from __future__ import annotations

import gc
import types
import weakref

import pytest

from sapwood.tree.nests.containers import weakly, weakly_bound


class Thing:
    """Has a method."""

    def method(self):
        return self


def test_what_is_alive_is_given():
    """It is the object itself."""
    thing = Thing()
    assert weakly(thing)() is thing
    bound = weakly_bound(thing.method)()
    assert bound == thing.method
    assert bound() is thing


@pytest.mark.parametrize("by", [weakly, lambda thing: weakly_bound(thing.method)])
def test_what_is_gone_is_none(by):
    """Nothing is kept by the reference."""
    thing = Thing()
    reference = by(thing)
    del thing
    gc.collect()
    assert reference() is None


def test_a_method_of_a_function_that_is_gone_is_none():
    """Its object alone cannot call it."""
    thing = Thing()
    reference = weakly_bound(types.MethodType(lambda _: None, thing))
    gc.collect()
    assert reference() is None
    assert thing is not None


def test_what_can_only_be_held_is_kept():
    """A tuple has no weak references."""
    reference = weakly((1, [2]))
    gc.collect()
    assert reference() == (1, [2])


@pytest.mark.parametrize("name", ["Stream", "Event"])
def test_what_would_leave_references_dangling_is_kept(name):
    """Torch's streams and events, and what is derived from them, whoever made it."""
    base = type(name, (), {"__module__": "torch"})
    own = type(name, (), {"__module__": "torches"})
    for cls, kept in (base, True), (type("Mine", (base,), {}), True), (own, False):
        value = cls()
        gone = weakref.ref(value)
        reference = weakly(value)
        del value
        gc.collect()
        assert (gone() is not None) is kept
        assert (reference() is not None) is kept
