"""Two calls have one key exactly where one recording serves both."""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pytest

import sapwood as sw
from sapwood.driver.emulated import Emulated
from sapwood.persist.key import diff
from sapwood.persist.source import key_of
from sapwood.tree.call.signature import describe
from sapwood.tree.choose.origins import signature_text
from sapwood.tree.guards import survey


@pytest.fixture(scope="module")
def rt():
    """Return a runtime, of which only arrays are used."""
    with sw.Runtime(Emulated(1 << 24, 1 << 16)) as rt:
        yield rt


@pytest.fixture
def key(rt):
    """Return what names a call of a function."""
    integration = rt._recordings.integration

    def key(fn, *args, name="f", **abilities):
        call = describe(args, {}, integration)
        arguments = inspect.signature(fn).bind(*args).arguments
        device = replace(rt._recordings.device.driver.abilities, **abilities)
        return key_of(name, call, survey(fn, arguments, integration), device)

    return key


RATE = 2.0


def _f(x, *_):
    return x * RATE


def _labels(one, other):
    return {each.label for each in diff(one, other)}


def test_the_same_call_has_the_same_key(rt, key):
    """Wherever its arrays are, and whatever is in them."""
    one, other = rt.array(np.zeros(3)), rt.array(np.ones(3))
    assert key(_f, one) == key(_f, other)
    assert key(_f, one, 1.5) == key(_f, other, 1.5)


def _calls(rt):
    x = rt.array(np.zeros((4, 4)))
    return [
        (x,),
        (x.T,),
        (x[:2],),
        (x.astype("f4"),),
        (x, x),
        (x, x[1:]),
        (x, x[2:]),
        (x, x + 0.0),
        (x, 1),
        (x, True),
        (x, 1.0),
        (x, 0.0),
        (x, -0.0),
        (x, "1"),
        (x, None),
        (x, [1]),
        (x, (1,)),
        (x, {"a": 1}),
        (x, {"b": 1}),
        (x, {1: 1}),
        (x, {True: 1}),
    ]


def test_signatures_have_their_own_keys(rt, key):
    """Layouts, values with their types and bits, nests, and what shares memory."""
    found = [key(_f, *args) for args in _calls(rt)]
    assert len(set(found)) == len(found)
    for one in found:
        for other in found:
            assert _labels(one, other) <= {"signature"}


def test_keys_name_what_they_were_made_of(rt, key):
    """Each part is a component with a label: what differs can be read off."""
    x = rt.array(np.zeros(3))
    plain = key(_f, x)
    assert _labels(plain, key(_f, x, name="g")) == {"function"}
    assert _labels(plain, key(_f, x, page=1 << 21)) == {"device"}
    assert _labels(plain, key(_f, x, name="f", kind="cuda")) == {"device"}
    labels = {label for label, _ in plain.components}
    assert {"format", "python", "sapwood", "reads RATE"} <= labels


def test_what_the_function_reads_is_in_the_key(rt, key, monkeypatch):
    """A global is named, with its type and bits."""
    x = rt.array(np.zeros(3))
    plain = key(_f, x)
    for value in (2, 2.5, True, None):
        monkeypatch.setitem(globals(), "RATE", value)
        assert _labels(plain, key(_f, x)) == {"reads RATE"}
    monkeypatch.setitem(globals(), "RATE", 2.0)
    assert key(_f, x) == plain


def _asks(x, state):
    return x * 2 if state["a"] is x else x * 3


def test_what_is_one_object_is_in_the_key(rt, key):
    """Where code asks: of arrays in slots, and of the call's own containers."""
    x, state = rt.array(np.zeros(3)), {}
    own, other = [x], [x]

    def asks(x):
        return _asks(x, state)

    def asks_of_nests(given):
        return given[0] * 2 if given is own else given[0] * 3

    found = []
    for state["a"] in (x, rt.array(np.zeros(3)), rt.array(np.ones(3))):
        found.append(key(asks, x))
    assert found[0] != found[1] == found[2]
    assert "what is one object" in _labels(found[0], found[1])
    assert key(asks_of_nests, own) != key(asks_of_nests, other)


class _Rate:
    def __init__(self, value):
        self.value = value


def test_which_object_is_passed_is_in_the_key(rt, key):
    """Though the function reaches several that look the same from outside."""
    one, other = _Rate(2.0), _Rate(3.0)

    def reads(x, rate):
        return x * rate.value + one.value * other.value

    x = rt.array(np.zeros(3))
    found = [key(reads, x, rate) for rate in (one, other, _Rate(2.0))]
    assert len(set(found)) == 3
    assert _labels(found[0], found[1]) == {"signature"}


def test_what_has_no_proof_has_no_key(rt, key):
    """What it is called is said instead."""
    opaque = object()

    def unproved(x):
        return x * 2.0 if opaque else x

    assert key(unproved, rt.array(np.zeros(3))).startswith("opaque cannot be proved")


def test_an_argument_that_nobody_looks_into_has_no_key(rt, key):
    """An object that is no plain value and is not reached cannot be compared."""
    found = key(_f, rt.array(np.zeros(3)), object())
    assert found.startswith("an argument cannot be proved")


def test_signatures_are_text_for_files(rt):
    """Without a survey, only arrays and plain values can be said."""
    integration = rt._recordings.integration
    x = rt.array(np.zeros(3))
    assert signature_text(describe((x, 1.5), {}, integration), None).isascii()
    assert signature_text(describe((x, object()), {}, integration), None) is None

    class Local(dict):
        pass

    sw.register_container(Local, lambda d: (list(d.values()), tuple(d)), Local)
    assert signature_text(describe((Local(a=x),), {}, integration), None) is None
