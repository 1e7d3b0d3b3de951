"""Law 1: what callers may change of a result is another object in every call."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

import sapwood as sw

MAKERS = {
    "set": (lambda: {"a", 1}, lambda it: it.add("b")),
    "bytearray": (lambda: bytearray(b"a"), lambda it: it.append(1)),
}


@sw.eager
def shown(x):
    return x * 2


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("live", [False, True])
def test_what_is_made_inside(rt, kind, nested, live):
    """Whatever earlier callers do to theirs, in fast replays, too."""
    make, change = MAKERS[kind]

    def fn(x):
        x = shown(x) if live else x * 2
        return x + 1, ([make()] if nested else make())

    f, x = rt.graph(fn), rt.array([1.0, 2.0])
    results = []
    for _ in range(30):
        given = f(x)[1]
        results.append(given[0] if nested else given)
        assert results[-1] == make()
        change(results[-1])
    assert len({*map(id, results)}) == len(results)
    assert f.stats().replays >= 28


@pytest.mark.parametrize("kind", MAKERS)
def test_what_is_returned_twice(rt, kind):
    """It is one object in every result."""
    make, _ = MAKERS[kind]

    def fn(x):
        it = make()
        return x * 2, it, [it, make()]

    f, x = rt.graph(fn), rt.array([1.0, 2.0])
    for _ in range(20):
        _, it, (same, other) = f(x)
        assert same is it
        assert other is not it
        assert same == other == make()


@pytest.mark.parametrize("kind", MAKERS)
def test_what_somebody_holds(rt, kind):
    """What a function finds and returns is that very object."""
    make, change = MAKERS[kind]
    state = SimpleNamespace(it=make())
    f, x = rt.graph(lambda x: (x * 2, state.it)), rt.array([1.0, 2.0])
    for _ in range(20):
        assert f(x)[1] is state.it
    change(state.it)
    for _ in range(20):
        assert f(x)[1] is state.it
    assert state.it != make()


@pytest.mark.parametrize("kind", MAKERS)
def test_what_was_passed(rt, kind):
    """A replay would return what another call was passed: that is refused."""
    make, _ = MAKERS[kind]
    f, x = rt.graph(lambda x, it: (x * 2, it), fullgraph=True), rt.array([1.0, 2.0])
    it = make()
    assert f(x, it)[1] is it
    with pytest.raises(sw.CaptureError, match=f"returns a {kind} that it was passed"):
        f(x, make())
    f = rt.graph(lambda x, it: (x * 2, type(it)(it)), fullgraph=True)
    for _ in range(4):
        it = make()
        given = f(x, it)[1]
        assert given == it
        assert given is not it


def test_what_cannot_be_changed_is_shared(rt):
    """A frozenset stays the one that it is, and fast replays are played."""
    f, x = rt.graph(lambda x: (x * 2, frozenset("a"))), rt.array([1.0, 2.0])
    results = [f(x)[1] for _ in range(20)]
    assert len({*map(id, results[1:])}) == 1


@dataclass
class Setting:
    rate: float = 0.5
    inner: Any = None


WAYS = {
    "an attribute": lambda it, held: setattr(held, "it", it) or (lambda: held.it),
    "a closure": lambda it, _: lambda: it,
    "in a list": lambda it, _: lambda: [it],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("nested", [False, True])
def test_fields_of_what_is_returned_are_seen(rt, way, nested):
    """No code names them but what has the result: a replay has them as they are."""
    setting, held = Setting(), SimpleNamespace()
    outer = Setting(inner=setting) if nested else setting
    get = WAYS[way](outer, held)
    f, x = rt.graph(lambda x: (x * 2, get())), rt.array([1.0, 2.0])
    for rate in (0.5, 0.25, 0.5):
        setting.rate = rate
        for _ in range(8):
            given = f(x)[1]
            given = given[0] if way == "in a list" else given
            assert (given.inner if nested else given).rate == rate
    assert f.stats().replays >= 12


def test_a_default_stays_the_class_s(rt):
    """A field that no instance has set is none of what a replay gives it."""

    @dataclass
    class Out:
        y: Any
        scale: int = field(init=False, default=5)

    f, x = rt.graph(lambda x: Out(x * 2)), rt.array([1.0, 2.0])
    results = [f(x) for _ in range(6)]
    assert all([*vars(each)] == ["y"] for each in results)
    Out.scale = 6
    assert all(each.scale == 6 for each in (*results, f(x)))
    assert f.stats().replays >= 3
