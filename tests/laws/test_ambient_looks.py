"""Law 9: how a thing is made, beside what it holds, is a value that functions read."""

from __future__ import annotations

import collections
import functools

import numpy as np
import pytest


class Held:
    """Holds a thing that others may take the place of."""

    def __init__(self, thing):
        self.thing = thing


class Deque(collections.deque):
    """A deque of one's own kind."""


class Defaults(collections.defaultdict):
    """A dict of one's own kind, that knows what is missing."""


def _bounded(kind):
    held = Held(kind([1.0], maxlen=2))
    return lambda x: x * held.thing.maxlen, lambda: setattr(
        held, "thing", kind([1.0], maxlen=5)
    )


def _defaults(kind):
    held = kind(lambda: 2.0)
    return lambda x: x * held.copy()["k"], lambda: setattr(
        held, "default_factory", lambda: 3.0
    )


def _factory_alone(kind):
    held = kind(list)
    return (
        lambda x: x * (2 if held.default_factory is list else 3),
        lambda: setattr(held, "default_factory", dict),
    )


def _partial():
    held = functools.partial(max, 1.0)
    held.rate = 2.0
    return lambda x: x * held.rate, lambda: setattr(held, "rate", 3.0)


def _partial_without():
    held = functools.partial(max, 1.0)
    return (
        lambda x: x * getattr(held, "rate", 1.0),
        lambda: setattr(held, "rate", 3.0),
    )


def _format():
    held = Held(memoryview(b"\xff").cast("B"))
    return (
        lambda x: x * held.thing[0],
        lambda: setattr(held, "thing", held.thing.cast("b")),
    )


def _order():
    held = Held(np.arange(4.0).reshape(2, 2))
    return (
        lambda x: x * float(held.thing.ravel("K")[1]),
        lambda: setattr(held, "thing", np.asfortranarray(held.thing)),
    )


def _strides():
    held = Held(np.zeros(8)[::2])
    return (
        lambda x: x + held.thing.strides[0],
        lambda: setattr(held, "thing", np.zeros(4)),
    )


def _writeable():
    held = np.ones(3)
    return (
        lambda x: x * (2 if held.flags.writeable else 3),
        lambda: held.setflags(write=False),
    )


def _fields():
    held = Held(np.zeros(2, [("a", "f4"), ("b", "f4")]))
    return (
        lambda x: x * len(held.thing.dtype.names[0]),
        lambda: setattr(held, "thing", np.zeros(2, [("long", "f4"), ("b", "f4")])),
    )


READS = {
    "a deque's bound": lambda: _bounded(collections.deque),
    "a bound of one's own kind": lambda: _bounded(Deque),
    "a factory": lambda: _defaults(collections.defaultdict),
    "a factory alone": lambda: _factory_alone(collections.defaultdict),
    "a factory of one's own kind": lambda: _factory_alone(Defaults),
    "a partial's attribute": _partial,
    "a partial's new attribute": _partial_without,
    "a format": _format,
    "an order": _order,
    "strides": _strides,
    "flags": _writeable,
    "fields": _fields,
}


@pytest.mark.parametrize("read", READS)
def test_what_is_read_is_that_of_now(rt, read):
    """Whatever was recorded before, and however often."""
    plain, change = READS[read]()
    f, x = rt.graph(plain), rt.array(np.ones(3))
    for i in range(12):
        if i == 6:
            before = np.asarray(plain(x)).tolist()
            change()
            assert np.asarray(plain(x)).tolist() != before
        assert np.asarray(f(x)).tolist() == np.asarray(plain(x)).tolist()
    stats = f.stats()
    assert (stats.recordings, stats.passed_through) == (2, 0)
    assert stats.replays > 4
