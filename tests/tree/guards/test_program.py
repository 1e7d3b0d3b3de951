"""A program says what the tests say, or nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sapwood import _fast
from sapwood.tree.guards.steps import PATIENCE


@pytest.fixture(autouse=True)
def _native():
    if _fast.native() is None:
        pytest.skip("nothing in C here")


class Thing:
    def __init__(self, n):
        self.n, self.name, self.inner = n, "a", [1, 2, {"k": 3.5}]


@pytest.mark.parametrize(
    "change",
    [
        lambda o: setattr(o, "n", 7),
        lambda o: setattr(o, "name", "b"),
        lambda o: o.inner.append(4),
        lambda o: o.inner[2].update(k=-3.5),
        lambda o: o.inner[2].update(other=1),
        lambda o: setattr(o, "inner", (1, 2)),
        lambda o: delattr(o, "name"),
        lambda o: setattr(o, "n", 1.0),
    ],
    ids=["int", "text", "length", "value", "key", "class", "gone", "type"],
)
def test_no_change_is_overlooked(guard, change):
    """However often nothing had changed before, and after the code was written."""
    o = Thing(1)

    def fn(x):
        return x * o.n, o.name, o.inner[2]["k"]

    ambient = guard(fn)
    for _ in range(PATIENCE + 3):
        assert ambient.match() == []
    assert ambient.program.read() == []
    change(o)
    assert ambient.program.read() is None
    assert ambient.match() is None


def test_an_equal_value_is_left_to_the_tests(guard):
    """Another object of the same type and bits is no change."""
    o = Thing(float("1e300"))

    def fn(x):
        return x * o.n

    ambient = guard(fn)
    for _ in range(PATIENCE + 3):
        assert ambient.match() == []
    o.n = float("1e300")
    assert ambient.program.read() is None
    assert ambient.match() == []


def test_values_that_may_change_are_never_glanced_at(guard):
    """A bytearray stays the same object, whatever is written into it."""
    o = SimpleNamespace(data=bytearray(b"abc"))

    def fn(x):
        return x * o.data[0]

    ambient = guard(fn)
    for _ in range(PATIENCE + 3):
        assert ambient.match() == []
    o.data[0] = 0
    assert ambient.match() is None


def test_what_is_gone_is_not_nothing(guard):
    """A slot that holds None where an object was is a change, though it is gone."""
    o = SimpleNamespace(made=object.__new__(Thing))

    def fn(x):
        return x if o.made is None else -x

    ambient = guard(fn)
    for _ in range(PATIENCE + 3):
        assert ambient.match() == []
    o.made = None
    assert ambient.match() is None
