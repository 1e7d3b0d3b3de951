"""Objects of the standard library: what a miss says, and that looking runs nothing."""

from __future__ import annotations

import argparse
import collections
import contextvars
import io
import itertools
import logging
import os
import sys
import threading
import weakref

import numpy as np
import pytest

from sapwood.tree.guards import survey


class Thing:
    def __init__(self):
        self.v = 2.0


def _space():
    held = argparse.Namespace(rate=0.1)
    return (
        lambda: held.rate,
        lambda: setattr(held, "rate", 0.2),
        "held.rate was 0.1, is 0.2",
    )


def _variable():
    held = contextvars.ContextVar("held", default=1)
    return held.get, lambda: held.set(2), "get.__self__.get() was 1, is 2"


def _environ():
    def change():
        os.environ["SAPWOOD_TEST"] = "b"

    return (
        lambda: os.getenv("X"),
        change,
        "os.environ['SAPWOOD_TEST'] was b'a', is b'b'",
    )


def _error_state():
    change = lambda: np.seterr(divide="print")  # noqa: E731
    return lambda: np.geterr(), change, "np.geterr()['divide'] was 'raise'"


def _user_dict():
    held = collections.UserDict(a=1)
    return (
        lambda: held["a"],
        lambda: held.update(a=2),
        "held.data['a'] was 1, is 2",
    )


def _weak():
    thing = Thing()
    held = weakref.ref(thing)
    return (
        lambda: held().v,
        lambda: setattr(thing, "v", 3.0),
        "held().v was 2.0, is 3.0",
    )


def _weak_keys():
    thing = Thing()
    held = weakref.WeakKeyDictionary({thing: 1})
    return (
        lambda: held[thing],
        lambda: held.update({thing: 2}),
        "held[<Thing>] was 1, is 2",
    )


def _level():
    held = logging.getLogger("sapwood.tree.test")
    held.setLevel(logging.INFO)
    return (
        lambda: held.getEffectiveLevel(),
        lambda: held.setLevel(logging.ERROR),
        "the level of held was 20, is 40",
    )


def _stream():
    held = io.BytesIO(b"a")
    return lambda: held.read, held.close, "held was b'a', is nothing"


def _handlers():
    class Handler(logging.Handler):
        pass

    held = logging.getLogger("sapwood.tree.test")
    return (
        lambda: held.info("told"),
        lambda: held.addHandler(Handler()),
        "len(held) was 0, is 1",
    )


CASES = [_space, _variable, _environ, _error_state, _user_dict, _weak, _weak_keys]
CASES += [_level, _stream, _handlers]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    """The process is set up as before after each test."""
    monkeypatch.setenv("SAPWOOD_TEST", "a")
    with np.errstate(divide="raise"):
        yield
    logging.getLogger("sapwood.tree.test").handlers.clear()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_miss_names_what_differs(case, guard):
    """The path is what a user would write to see the value."""
    fn, change, text = case()
    ambient = guard(fn)
    assert ambient.holds(), ambient.miss()
    change()
    assert not ambient.holds()
    assert text in ambient.miss()


def test_guards_see_the_values_of_their_thread(guard):
    """What is local to a thread, or to a context, is looked up where the call is."""
    held, variable = threading.local(), contextvars.ContextVar("variable", default=1)
    held.v = 1
    ambient = guard(lambda: (held.v, variable.get()))
    seen = []
    for values in ((1, 1), (2, 1), (1, 2)):

        def other(values=values):
            held.v = values[0]
            variable.set(values[1])
            seen.append(ambient.holds())

        thread = threading.Thread(target=contextvars.Context().run, args=(other,))
        thread.start()
        thread.join()
    assert seen == [True, False, False]
    assert ambient.holds()


def test_looking_runs_no_code_of_the_users(arrays, watch):
    """No method of anything that is reached is called by a survey or by guards."""

    class Loud:
        armed = False

        def __getattr__(self, name):
            raise AssertionError(f"__getattr__ was called for {name}")

        def _shout(self, *_):
            if Loud.armed:
                raise AssertionError("a method was called")
            return 1

        __len__ = __getitem__ = __hash__ = __eq__ = __iter__ = __repr__ = _shout
        __bool__ = __next__ = __call__ = _shout

    loud = Loud()
    proxy, reference = weakref.proxy(loud), weakref.ref(loud)
    keys, variable = weakref.WeakKeyDictionary({loud: 1}), contextvars.ContextVar("v")
    variable.set(loud)
    backwards, forwards = reversed(loud), iter(loud.__getitem__, 0)
    space = argparse.Namespace(loud=loud, old=iter(Old()))

    def fn():
        return proxy, reference, keys, variable, backwards, forwards, space, space.loud

    Loud.armed = True
    before = survey(fn, {}, arrays)
    ambient = before.guards(bool)
    assert ambient.holds(), ambient.miss()
    assert ambient.miss() is None
    assert survey(fn, {}, arrays).changes_since(before) == ()
    assert watch(lambda: space.old) == ()
    Loud.armed = False


class Old:
    """A sequence by its items alone."""

    def __getitem__(self, index):
        raise AssertionError("an item was asked for")

    def __len__(self):
        raise AssertionError("the length was asked for")


def test_what_replaces_a_function_that_tells_a_state_is_not_called(guard):
    """A guard calls only the very function that it knows to be harmless."""
    called, held = [], [sys.getrecursionlimit]
    ambient = guard(lambda: held[0]())
    assert ambient.holds()
    held[0] = [called].append
    assert not ambient.holds()
    held[0] = sys.exit
    assert not ambient.holds()
    assert "held[0] was <builtin" in ambient.miss()
    assert called == []


MOVED = {
    "zip": lambda: zip(itertools.count(), [1, 2, 3], strict=False),
    "map": lambda: map(str, [1, 2, 3]),
    "chain": lambda: itertools.chain([1], [2]),
    "islice": lambda: itertools.islice(itertools.count(), 5),
    "enumerate": lambda: enumerate("abc"),
    "dict": lambda: iter({"a": 1, "b": 2}),
    "reversed": lambda: reversed([1, 2]),
    "repeat": lambda: itertools.repeat(1, 3),
    "accumulate": lambda: itertools.accumulate(range(9)),
    "deque": lambda: iter(collections.deque([1, 2])),
    "old": lambda: iter(Counting()),
    "generator": lambda: (n for n in [1, 2]),
    "cycle": lambda: itertools.cycle([1, 2]),
    "product": lambda: itertools.product([1, 2], [3]),
    "calls": lambda: iter(int, 1),
}


class Counting:
    def __getitem__(self, index):
        return index


@pytest.mark.parametrize("kind", MOVED)
def test_an_iterator_that_moves_is_noticed(watch, kind):
    """Whatever it is made of, the first value taken from it is told, by name."""
    held = MOVED[kind]()
    (change,) = watch(lambda: next(held))
    assert str(change).startswith(("the place of held", "held is"))


@pytest.mark.parametrize("kind", sorted(MOVED.keys() - {"cycle", "product", "calls"}))
def test_an_iterator_that_a_loop_moves_is_noticed(watch, kind):
    """So is one that a loop takes a value from, where its place can be read."""
    held = MOVED[kind]()

    def fn():
        for _ in held:
            return

    assert len(watch(fn)) == 1


def test_an_iterator_that_gives_one_value_for_ever_does_not_move(watch):
    """Taking from an endless repeat changes nothing; an iterator that ended stays."""
    held, ended = itertools.repeat(1), (n for n in ())
    assert list(ended) == []
    assert watch(lambda: next(held)) == ()
    assert watch(lambda: list(ended)) == ()


def test_modules_are_read_where_code_names_their_states(guard, monkeypatch):
    """Flags in modules of packages and of Python are values like any other."""
    ambient = guard(lambda: (sys.maxsize, np.little_endian, logging.INFO))
    monkeypatch.setattr(np, "little_endian", False)
    assert not ambient.holds()
    assert ambient.miss() == "np.little_endian was True, is False"
    monkeypatch.undo()
    assert ambient.holds()
    monkeypatch.setattr(sys, "flags", None)
    monkeypatch.setattr(np, "maximum", None)
    assert ambient.holds(), ambient.miss()
