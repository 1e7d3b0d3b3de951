"""Law 9: what the constructors of classes read that code finds by an instance."""

from __future__ import annotations

import collections
import copy
import dataclasses
import importlib
import pickle
import sys
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

settings = SimpleNamespace(scale=2.0)


class Scaled:
    """Scales what it is made from."""

    def __init__(self, a):
        self.a = a * settings.scale

    def __add__(self, other):
        return type(self)(self.a + other.a)

    def __sub__(self, other):
        kind = self.__class__
        return kind(self.a - other.a)

    @classmethod
    def made(cls, a):
        return cls(a)

    def __neg__(self):
        return self.made(-self.a)


class Heir(Scaled):
    """Is made as the class above."""


class Remade(Scaled):
    """Is made in another way."""

    def __new__(cls, a):
        self = super().__new__(cls)
        self.b = a * settings.scale
        return self

    def __init__(self, a):
        self.a = self.b + a


@dataclasses.dataclass(frozen=True)
class Record:
    """Has a field that follows from another."""

    a: float

    def __post_init__(self):
        object.__setattr__(self, "b", self.a * settings.scale)


class Items(collections.UserList):
    """A list whose own code makes others of its class."""

    def __init__(self, items=()):
        super().__init__(items)
        self.data = [each * settings.scale for each in self.data]


class Copied:
    """Says itself how it is copied and pickled."""

    def __init__(self):
        self.a = 1.0

    def __copy__(self):
        return SimpleNamespace(a=settings.scale)

    def __deepcopy__(self, _):
        return SimpleNamespace(a=settings.scale)

    def __getstate__(self):
        return {"a": settings.scale}


class Reduced:
    """Is copied by what it reduces to."""

    def __reduce__(self):
        return (SimpleNamespace, (), {"a": settings.scale})


WAYS = {
    "its type": (Scaled(1.0), lambda it: (it + it).a),
    "its type's heir": (Heir(1.0), lambda it: (it + it).a),
    "its class": (Scaled(1.0), lambda it: (it - it).a + it.__class__(1.0).a),
    "a classmethod": (Heir(1.0), lambda it: (-it).a),
    "another new": (Remade(1.0), lambda it: (it + it).a),
    "called here": (Scaled(1.0), lambda it: type(it)(3.0).a),
    "named here": (Scaled(1.0), lambda it: it.made(3.0).a),
    "named by text": (Scaled(1.0), lambda it: getattr(it, "ma" + "de")(3.0).a),
    "replaced": (Record(1.0), lambda it: dataclasses.replace(it, a=3.0).b),
    "replaced by name": (Record(1.0), lambda it: replace(it, a=3.0).b),
    "of a package": (Items([1.0]), lambda it: sum((it + it).data)),
    "copied": (Copied(), lambda it: copy.copy(it).a),
    "copied deeply": (Copied(), lambda it: deepcopy(it).a),
    "copied within": (Copied(), lambda it: copy.deepcopy([it])[0].a),
    "pickled": (Copied(), lambda it: pickle.loads(pickle.dumps(it)).a),
    "reduced": (Reduced(), lambda it: copy.copy(it).a),
}


@pytest.mark.parametrize("calls", [1, 3, 20])
@pytest.mark.parametrize("way", WAYS)
def test_what_a_constructor_reads(agree, way, calls):
    """However the class is come by, and whatever it makes."""
    it, read = WAYS[way]
    state = SimpleNamespace(it=it)

    def program(world):
        settings.scale = 2.0
        f, x = world.graph(lambda x: x * read(state.it)), world.values(2)
        for scale in (2.0, 5.0, 2.0):
            settings.scale = scale
            for _ in range(calls):
                yield f(x)

    agree(program)


def test_what_is_never_made_is_not_looked_into(rt):
    """A class that is only known by its instances counts these, which is no miss."""

    class Counted:
        count = 0

        def __init__(self):
            type(self).count += 1
            self.a = 2.0

        def times(self, x):
            return x * self.a

    it = Counted()
    f, x = rt.graph(lambda x: it.times(x)), rt.array([1.0, 2.0])
    for _ in range(4):
        f(x)
        Counted()
    assert (f.stats().recordings, f.stats().replays) == (1, 2)


def test_a_class_that_is_only_asked_for(rt):
    """What its constructor writes is nothing to a function that asks for its name."""

    class Counting:
        def __init__(self):
            self.calls, self.factor = 0, rt.array(np.ones(3))

    held = Counting()
    f = rt.graph(lambda x: x * held.factor if type(held).__name__ else x)
    for i in range(8):
        held.calls += 1
        assert np.asarray(f(rt.array(np.full(3, float(i))))).tolist() == [i] * 3
    assert f.stats().recordings == 1


PACKAGE = """
import functools


def wrapping(fn):
    @functools.wraps(fn)
    def call(*args):
        return fn(*args)

    return call


def enclosing(fn):
    return lambda *args: fn(*args)


class Wrapped:
    @wrapping
    def scaled(self, x):
        return x * self.factor


class Enclosed:
    @enclosing
    def scaled(self, x):
        return x * self.factor


class Twice:
    @wrapping
    @enclosing
    def scaled(self, x):
        return x * self.factor


class Read:
    @property
    @enclosing
    def scaled(self):
        return lambda x: x * self.factor
"""


LOCKED = """
import threading


class Source:
    def __init__(self):
        self.lock, self.factor = threading.Lock(), 2.0
"""


def test_a_lock_that_a_package_has_for_itself(rt, tmp_path, monkeypatch):
    """It is not around what the function counts."""
    place = tmp_path / "site-packages"
    place.mkdir()
    (place / "locked_package.py").write_text(LOCKED)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, "locked_package", raising=False)
    source = importlib.import_module("locked_package").Source()
    counts = {"calls": 0}

    def fn(x):
        counts["calls"] += 1
        return x * source.factor

    f = rt.graph(fn)
    for _ in range(8):
        f(rt.array(np.arange(3.0)))
    assert counts["calls"] == 8
    assert f.stats().replays >= 5


class Evaluated:
    """Its mode is set by a method of a builtin's name."""

    def __init__(self):
        self.training, self.calls = True, 0

    def eval(self):
        self.training = False
        return self


def test_a_method_named_eval(rt):
    """It has no text to run: what else there is may be counted."""
    model = Evaluated()

    def fn(x):
        model.eval()
        model.calls += 1
        return x * 3 if model.training else x * 2

    f, x = rt.graph(fn), rt.array(np.arange(3.0))
    for turn in range(10):
        assert np.asarray(f(x)).tolist() == [0.0, 2.0, 4.0]
        assert (model.calls, model.training) == (turn + 1, False)
    assert f.stats().replays >= 6


@pytest.mark.parametrize("name", ["Wrapped", "Enclosed", "Twice", "Read"])
def test_methods_of_packages_are_read_behind_decorators(
    rt, tmp_path, monkeypatch, name
):
    """What they name is guarded in their objects, though only they name it."""
    place = tmp_path / "site-packages"
    place.mkdir()
    (place / "decorated_package.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, "decorated_package", raising=False)
    thing = getattr(importlib.import_module("decorated_package"), name)()
    thing.factor = 2.0
    f, x = rt.graph(lambda x: thing.scaled(x)), rt.array(np.arange(3.0))
    for factor in (2.0, 3.0, 2.0):
        thing.factor = factor
        for _ in range(4):
            assert np.asarray(f(x)).tolist() == (np.arange(3.0) * factor).tolist()
    assert f.stats().replays >= 4
