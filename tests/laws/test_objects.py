"""Objects that a function makes and returns are made anew by every replay."""

from __future__ import annotations

import abc
import threading
import weakref

import numpy as np
import pytest

import sapwood as sw

CONFIG = threading.Lock()


class Normal:
    """What a policy gives: attributes, and methods that use them."""

    def __init__(self, loc, scale):
        self.loc, self.scale = loc, scale

    def likely(self):
        return self.loc * self.scale


class Layer(abc.ABC):
    def __init__(self, x):
        self.keys, self.values, self.ready = x * 2, x + 1, True

    @abc.abstractmethod
    def size(self): ...


class Dynamic(Layer):
    def size(self):
        return len(self.keys)


class Cache:
    """Objects in containers in an object, and one of them twice."""

    def __init__(self, x):
        self.layers = [Dynamic(x), Dynamic(x * 3)]
        self.first, self.config = self.layers[0], CONFIG
        self.named = {"last": self.layers[1], "all": self.layers}


class Slotted:
    __slots__ = ("__weakref__", "left", "never", "right")

    def __init__(self, x):
        self.left, self.right = x + 1, (x * 2, 3)


class Derived(Slotted):
    """Slots, and attributes besides."""

    def __init__(self, x):
        super().__init__(x)
        self.more = [self.left, self.left]


class Guarded:
    """An attribute of the name of a property, whose setter nobody calls."""

    def __init__(self, x):
        self.__dict__["value"] = x - 1

    @property
    def value(self):
        return self.__dict__["value"]

    @value.setter
    def value(self, _):
        raise AssertionError


def _cache(x):
    cache = Cache(x)
    return {"loss": cache.first.keys.sum(), "cache": cache, "again": cache.layers}


MADE = {
    "attributes": lambda x: Normal(x + 1, 2.0),
    "in each other": _cache,
    "twice": lambda x: [one := Normal(x, x + 1), (one, one)],
    "slots": lambda x: Slotted(x),
    "slots and attributes": lambda x: (Derived(x), x * 5),
    "a property": lambda x: Guarded(x),
    "of nothing on the device": lambda x: (x + 1, Normal(1, "two")),
    "an argument in it": lambda x: Normal(x, None),
}


def _parts(value, seen):
    """Return a nest of an object's parts; the number of one that was seen before."""
    if isinstance(value, (list, tuple, dict)) or hasattr(value, "layers"):
        known = seen.setdefault(id(value), len(seen))
        if known < len(seen) - 1 and not isinstance(value, tuple):
            return "the same as", known
    if isinstance(value, (list, tuple)):
        return tuple(_parts(each, seen) for each in value)
    if isinstance(value, dict):
        return {key: _parts(each, seen) for key, each in value.items()}
    if type(value).__module__ != __name__:
        return value if value is not CONFIG else "the configuration"
    known = seen.setdefault(id(value), len(seen))
    if known < len(seen) - 1:
        return "the same as", known
    names = ("left", "right") if hasattr(value, "left") else ()
    held = {name: getattr(value, name) for name in names}
    held.update(getattr(value, "__dict__", {}))
    return type(value).__name__, {name: _parts(held[name], seen) for name in held}


@pytest.mark.parametrize("verify", [0, 1])
@pytest.mark.parametrize("name", MADE)
def test_what_is_made_is_returned_anew(agree, name, verify):
    """Its class, its attributes, and what of them is one; each call gives another."""

    def program(world):
        f, kept = world.graph(MADE[name], verify=verify, max_variants=4), []
        for i in range(9):
            made = f(world.values(3, 4))
            assert all(made is not other for other in kept)
            kept.append(made)
            yield [_parts(each, {}) for each in kept]
            del kept[: i // 3]

    world = agree(program)
    assert world.count("replays") >= 1
    assert not any(each.stats().skipped for each in world.functions)


def test_what_is_dropped_frees_its_memory(rt):
    """A replayed object holds what its call computed, and nobody else does."""
    f = rt.graph(lambda x: Normal(x + 1, x * 2))
    x = rt.array(np.ones(5))
    for _ in range(20):
        made = f(x)
        gone = weakref.ref(made)
        assert np.asarray(made.likely()).tolist() == [4.0] * 5
        del made
        assert gone() is None
    assert f.stats().recordings == 1
    assert f.stats().replays == 18


SHARED = Normal(1, 2)
SEEN = weakref.WeakSet()


class Reduced(Normal):
    def __reduce__(self):
        return Reduced, (self.loc, self.scale)


class Ending(Normal):
    def __del__(self):
        pass


class Meta(type):
    def __call__(cls, *args):
        return super().__call__(*args)


class Counted(Normal, metaclass=Meta):
    pass


def _ring(x):
    made = Normal(x + 1, None)
    made.scale = made
    return made


def _locked(x):
    return Normal(x + 1, threading.Lock())


def _differs(numbers):
    return lambda x: Normal(x + 1, next(numbers))


NOT_MADE = {
    "copied in its own way": lambda x: Reduced(x + 1, 2),
    "noticed when it ends": lambda x: Ending(x + 1, 2),
    "made in another way": lambda x: Counted(x + 1, 2),
    "held by itself": _ring,
    "with a lock of its own": _locked,
}


@pytest.mark.parametrize("name", NOT_MADE)
@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_what_is_more_than_its_attributes_runs_eagerly(rt, name):
    """A replay would give something else."""
    f = rt.graph(NOT_MADE[name])
    for i in range(5):
        made = f(rt.array(np.full(3, float(i))))
        assert np.asarray(made.loc).tolist() == [i + 1.0] * 3
    assert f.stats().replays == 0
    assert "the result holds a" in f.stats().skipped[0][0]


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_what_holds_another_value_each_time_runs_eagerly(rt):
    """That value is not the recording's."""
    f = rt.graph(_differs(iter(range(100))))
    assert [f(rt.array(np.ones(2))).scale for _ in range(6)] == [*range(6)]
    assert f.stats().replays == 0


def test_an_object_that_was_there_is_returned_itself(rt):
    """Also where one is made beside it that looks the same."""
    f = rt.graph(lambda x: (SHARED, Normal(1, 2), x + 1))
    x = rt.array(np.ones(3))
    for _ in range(6):
        shared, made, _ = f(x)
        assert shared is SHARED
        assert made is not SHARED
        assert vars(made) == vars(SHARED)
    assert f.stats().replays == 4


def test_an_object_that_is_passed_is_returned_itself(rt):
    """Another one that is passed is another call."""
    f = rt.graph(lambda x, cache: (cache, Normal(x, cache)))
    x = rt.array(np.ones(3))
    for cache in [Normal(1, 2)] * 4 + [Normal(3, 4)] * 4:
        given, made = f(x, cache)
        assert given is cache
        assert made.scale is cache
    assert f.stats().replays == 4


def test_subclasses_of_errors_are_no_such_objects(rt):
    """What is kept in C is no attribute."""
    f = rt.graph(lambda x: (sw.SapwoodError("no"), x + 1), fullgraph=True)
    x = rt.array(np.ones(3))
    with pytest.raises(sw.CaptureError, match="SapwoodError, which each call makes"):
        for _ in range(3):
            f(x)
