"""What a function does not read is not guarded, and guards keep nothing alive."""

from __future__ import annotations

import gc
import logging
import weakref
from dataclasses import dataclass
from functools import partial

import pytest

from sapwood.errors import CaptureError
from sapwood.tree.guards import survey
from sapwood.tree.guards.reach import LIMIT

STEP = 0
HUGE: list[int] = []
LOGGER = logging.getLogger("quiet")


class Model:
    unread = 0

    def __init__(self):
        self.weight = 2.0
        self.step = 0
        self.history = []
        self.me = self

    def __repr__(self):
        return f"Model at {self.step}"

    def forward(self, x):
        return x * self.weight, self.me

    def asked(self, x):
        return getattr(self, "weight", None), hasattr(self, "scale"), x


def test_attributes_that_no_code_names_are_free(guard):
    """A counter that the caller keeps on the object is no ambient value."""
    model = Model()
    for fn in (model.forward, model.asked, lambda x: model.forward(x), model):
        ambient = guard(fn)
        model.step += 1
        model.history.append(1)
        model.added = 1
        Model.unread += 1
        assert ambient.holds(), ambient.miss()


def test_globals_and_keys_that_no_code_names_are_free(guard, monkeypatch):
    """Only the function's own globals count, not those of attributes named alike."""

    class Thing:
        STEP = 1

    def fn():
        return Thing.STEP

    ambient = guard(fn)
    monkeypatch.setitem(globals(), "STEP", 5)
    assert ambient.holds()


def test_equal_values_are_the_same(guard):
    """A value made anew with the same type and bits is no miss."""

    @dataclass(frozen=True)
    class Config:
        rate: float
        sizes: tuple[int, ...]

    def case(number, config, items, fn):
        return lambda: (number, config.rate, config.sizes, items, fn())

    def values():
        return (
            float("nan"),
            Config(float("0.1"), (int("1000"), 2)),
            [{"k": float("1e9")}],
            lambda: 3,
        )

    first = values()
    fn = case(*first)
    ambient = guard(fn)
    names = ("number", "config", "items", "fn")
    inner = fn.__code__.co_freevars
    for name, value in zip(names, values(), strict=True):
        fn.__closure__[inner.index(name)].cell_contents = value
    assert ambient.holds(), ambient.miss()


def test_packages_are_not_entered(guard):
    """What loggers and modules of packages do inside is their own."""

    def fn(x):
        LOGGER.info("called")
        return logging.INFO, x

    ambient = guard(fn)
    LOGGER.addHandler(logging.NullHandler())
    logging.getLogger("quiet.child")
    assert ambient.holds(), ambient.miss()


def test_guards_keep_no_object_alive(guard, array):
    """Neither an object whose method is graphed, nor its arrays, nor arguments."""
    model = Model()
    model.weight = array(2)
    held = Model()
    ambient = guard(model.forward)
    other = guard(lambda x: x.weight, x=held)
    assert ambient.holds()
    gone = [weakref.ref(model), weakref.ref(model.weight), weakref.ref(held)]
    del model, held
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3
    assert not ambient.holds()
    assert not other.holds()
    assert ambient.miss() == "an object that the function reached is gone"


def test_a_survey_does_not_change_what_it_reads(arrays):
    """Looking inside inserts nothing into default dicts and calls no property."""
    from collections import defaultdict

    class Loud:
        @property
        def value(self):
            raise AssertionError("a property was called")

        def __getattr__(self, name):
            raise AssertionError("__getattr__ was called")

        def __eq__(self, other):
            raise AssertionError("__eq__ was called")

        __hash__ = object.__hash__

    counts, loud = defaultdict(int), Loud()

    def fn(name):
        return counts[name], loud.value, loud == 1

    before = survey(fn, {"name": loud}, arrays)
    ambient = before.guards(bool)
    assert ambient.holds(), ambient.miss()
    assert before.key == survey(fn, {"name": loud}, arrays).key
    assert survey(fn, {"name": loud}, arrays).changes_since(before) == ()
    assert counts == {}


def test_too_much_is_refused_by_name(arrays, monkeypatch):
    """A function that reaches more than can be guarded is told where it grows."""
    monkeypatch.setitem(globals(), "HUGE", list(range(LIMIT + 1)))
    with pytest.raises(CaptureError, match=r"most of them in HUGE\. Pass"):
        survey(lambda: HUGE, {}, arrays)


def test_equal_surroundings_give_equal_guards(guard, array):
    """Guards of the same values are equal, and differ with a value or a used array."""
    model = Model()
    model.weight = array(2)
    first, second = guard(model.forward), guard(model.forward)
    assert first == second
    assert first != guard(model.forward, used=lambda _: False)
    model.weight = array(2)
    assert first == guard(model.forward)
    model.weight = array(3)
    assert first != guard(model.forward)


def test_recursion_ends(guard):
    """Functions and containers that contain themselves are read once."""
    ring: list[object] = [1]
    ring.append(ring)

    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1) and ring

    fn = partial(even, 3)
    ambient = guard(fn)
    assert ambient.holds(), ambient.miss()
    ring[0] = 2
    assert ambient.miss().endswith("[0] was 1, is 2")
