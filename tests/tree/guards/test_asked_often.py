"""Guards say the same however often they are asked, in C and in Python."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sapwood import _fast

TIMES = 11


@pytest.fixture(
    autouse=True,
    params=[
        pytest.param(
            "C",
            marks=pytest.mark.skipif(_fast.native() is None, reason="nothing in C"),
        ),
        "Python",
    ],
)
def _native(request, monkeypatch):
    if request.param == "Python":
        monkeypatch.setattr(_fast, "native", lambda: None)


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
    """However often nothing had changed before."""
    o = Thing(1)

    def fn(x):
        return x * o.n, o.name, o.inner[2]["k"]

    ambient = guard(fn)
    for _ in range(TIMES):
        assert ambient.match() == []
    change(o)
    assert ambient.match() is None


def test_an_equal_value_is_as_good(guard):
    """Another object of the same type and bits is no change."""
    o = Thing(float("1e300"))

    def fn(x):
        return x * o.n

    ambient = guard(fn)
    for _ in range(TIMES):
        assert ambient.match() == []
    for _ in range(TIMES):
        o.n = float("1e300")
        assert ambient.match() == []
    o.n = 1.0
    assert ambient.match() is None


def test_values_that_may_change_are_compared_by_what_they_hold(guard):
    """A bytearray stays the same object, whatever is written into it."""
    o = SimpleNamespace(data=bytearray(b"abc"))

    def fn(x):
        return x * o.data[0]

    ambient = guard(fn)
    for _ in range(TIMES):
        assert ambient.match() == []
    o.data[0] = 0
    assert ambient.match() is None


def test_what_is_gone_is_not_nothing(guard):
    """A slot that holds None where an object was is a change, though it is gone."""
    o = SimpleNamespace(made=object.__new__(Thing))

    def fn(x):
        return x if o.made is None else -x

    ambient = guard(fn)
    for _ in range(TIMES):
        assert ambient.match() == []
    o.made = None
    assert ambient.match() is None
