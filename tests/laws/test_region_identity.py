"""What is the same array where a function with eager regions asks; what that shows."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

import sapwood as sw

CALLS = 9


class Slots:
    """What a function and its eager region share; ``odd`` at one call of all."""

    def __init__(self, rt):
        self.rt, self.odd = rt, False
        self.own = {"s": self.new(), "t": self.new()}
        self.other = self.new()

    def new(self):
        """Return another array."""
        return self.rt.array(np.ones(3))


def _replaced(slots):
    own = slots.own

    @sw.eager
    def note(_):
        if slots.odd:
            own["s"] = slots.other

    def fn(x):
        h = x * 2
        own["s"] = h
        note(x)
        return x + 1 if own["s"] is h else x + 2

    return fn


def _bound(slots):
    own = slots.own

    @sw.eager
    def note(h):
        own["s"] = h if slots.odd else slots.other

    def fn(x):
        h = x * 2
        note(h)
        return x + 1 if own["s"] is h else x + 2

    return fn


def _bound_to_an_argument(slots):
    own = slots.own

    @sw.eager
    def note(x):
        own["s"] = x if slots.odd else slots.other

    def fn(x):
        h = x * 2
        note(x)
        return h + 1 if own["s"] is x else h + 2

    return fn


def _returned(slots):
    own = slots.own

    @sw.eager
    def note(_):
        return own["s"] if slots.odd else slots.other

    def fn(x):
        h = x * 2
        return h + 1 if note(h) is own["s"] else h + 2

    return fn


def _passed(slots):
    own, note = slots.own, sw.eager(lambda _: None)
    del slots

    def fn(x):
        y = own["t"] * 2 if own["s"] is x else own["t"] * 3
        note(y)
        return y + 1

    return fn


@pytest.mark.parametrize("k", [3, 7])
@pytest.mark.parametrize(
    "make", [_replaced, _bound, _bound_to_an_argument, _returned, _passed]
)
def test_what_is_another_array_at_one_call(rt, make, k):
    """A function goes by it and does nothing to it: right, or refused by name."""
    slots = Slots(rt)
    fn = make(slots)
    f, plain = rt.graph(fn, fullgraph=True), make(host := Slots(rt))
    for i in range(CALLS):
        slots.odd = host.odd = i == k
        if i == 1:
            slots.own["t"] = slots.new()
        at_odds = make is _passed and slots.odd
        expected = plain(host.own["s"] if at_odds else host.new())
        with suppress(sw.CaptureError):
            found = f(slots.own["s"] if at_odds else slots.new())
            assert np.asarray(found).tolist() == np.asarray(expected).tolist()
    assert f.stats().replays > 0


def test_a_result_that_is_in_a_container_of_the_call(agree):
    """What a part has put there is the very object that the function returns."""

    def program(w):
        note = sw.eager(lambda _: None)

        def fn(x, box):
            h = x * 2
            box["h"] = h
            note(x)
            return h

        f = w.graph(fn)
        for _ in range(6):
            box = {"h": w.values(3)}
            y = f(w.values(3), box)
            yield y, box, y is box["h"]

    assert agree(program).count("replays") >= 3


# What was donated stays where it is shown.


def _slice(x, _, view):
    return view(x)


def _before(x, own, view):
    own["s"] = x
    view(x)


def _behind(x, own, view):
    view(x)
    own["s"] = x


@pytest.mark.parametrize("fn", [_slice, _before, _behind])
def test_a_donated_array_that_is_shown(rt, fn):
    """An eager region returned it, or a slot holds it, whichever part bound that."""
    own = {"s": None}
    view = sw.eager(lambda h: h[1:])
    f = rt.graph(lambda x: (fn(x, own, view), x + 1), donate=("x",))
    for i in range(6):
        shown, _ = f(rt.array(np.arange(3.0) + i))
        if shown is None:
            assert np.asarray(own["s"]).tolist() == [i, i + 1, i + 2]
        else:
            assert np.asarray(shown).tolist() == [i + 1, i + 2]
    assert f.stats().replays > 0


def test_a_donated_array_that_a_warm_up_binds(rt):
    """Without an eager region, too, it stays from the first call on."""
    own = {"s": rt.array(np.zeros(3))}

    def fn(x):
        own["s"] = x
        return x + 1

    f = rt.graph(fn, donate=("x",))
    for i in range(6):
        f(rt.array(np.arange(3.0) + i))
        assert np.asarray(own["s"]).tolist() == [i, i + 1, i + 2]


def test_an_argument_that_a_slot_holds_at_some_calls(rt):
    """The function goes by it before a region: if it is refused, nothing has run."""
    own = {"s": None, "w": rt.array(np.ones(2))}
    note = sw.eager(lambda: None)

    def fn(x):
        same = own["s"] is x
        note()
        return own["w"] * 2 if same else own["w"] * 3

    f = rt.graph(fn, fullgraph=True)
    arrays = [rt.array(np.full(2, i)) for i in range(4)]
    for i in range(40):
        x = arrays[i % 4]
        own["s"] = x if i % 7 > 3 else arrays[(i + 1) % 4]
        expected = [2, 2] if own["s"] is x else [3, 3]
        try:
            found = f(x)
        except sw.CaptureError as error:
            found, refused = None, str(error)
            assert "has run" not in refused
        assert found is None or np.asarray(found).tolist() == expected
    assert f.stats().replays > 10


@pytest.mark.parametrize("asks", ["slot and argument", "two slots", "what was passed"])
def test_a_view_that_an_eager_region_binds_is_another(rt, asks):
    """At the same bytes as the array that was there when it was recorded."""
    x, other, wrong = rt.array(np.ones(3)), rt.array(np.ones(3)), [False]
    state = SimpleNamespace(a=other, b=x)

    @sw.eager
    def live(h):
        one = h if asks == "what was passed" else x
        state.a = one[:] if wrong[0] else one

    def fn(x):
        h = x * 1.0
        live(h)
        last = {"slot and argument": x, "two slots": state.b, "what was passed": h}
        return h * 2 if state.a is last[asks] else h * 3

    f = rt.graph(fn, fullgraph=True)
    for turn in range(10):
        state.a, wrong[0] = other, turn >= 8
        expected = np.asarray(fn(x)).tolist()
        state.a = other
        if not wrong[0]:
            assert np.asarray(f(x)).tolist() == expected
            continue
        with suppress(sw.CaptureError):
            assert np.asarray(f(x)).tolist() == expected
