"""Exceptions around eager regions: what is done on the way out is as eager.

In a replay, in which a region raises inside a `with` or a `try`; and in a recording
that fails at a region, where handlers of the function run meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
from contextvars import ContextVar
from types import SimpleNamespace

import pytest

import sapwood as sw

pytestmark = pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")

CALLS, RAISE = 14, (9, 12)
"""In these calls regions raise."""


class Ends(BaseException):
    """What ends a program, as an interrupt does."""


class Counted:
    """A context that writes to an array at its end."""

    def __init__(self, s):
        self.s = s

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.s.w += 1


def _suppressed(s, live):
    def fn(x):
        h = x + 1
        with contextlib.suppress(ArithmeticError):
            live(h)
            h = h * 2
        return h - s.w

    return fn


def _written_at_the_end(s, live):
    def fn(x):
        with Counted(s):
            live(x)
        return x + s.w

    return fn


def _in_two_contexts(s, live):
    def inner(x):
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: s.v.__imul__(2))
            live(x * 2)
        return x * 3

    def fn(x):
        with contextlib.suppress(ArithmeticError), Counted(s):
            x = inner(x)
        return x + s.v

    return fn


def _ended(s, live):
    def fn(x):
        h = x + 1
        try:
            live(h)
        except Ends:
            h = h * 5
        finally:
            s.w += 1
        return h

    return fn


def _returned_in_a_try(s, live):
    def fn(x):
        h = x + s.w
        try:
            live(h)
            return h  # noqa: TRY300 - it is what is tested
        except ArithmeticError:
            return x

    return fn


def _returned_to_a_try(s, live):
    def inner(x):
        h = x + s.w
        live(h)
        return h

    def fn(x):
        try:
            return inner(x)
        except ArithmeticError:
            s.w += 1
            return x

    return fn


REPLAYED = {
    "returned in a try": (_returned_in_a_try, ArithmeticError),
    "returned to a try": (_returned_to_a_try, ArithmeticError),
    "suppressed": (_suppressed, ArithmeticError),
    "written at the end": (_written_at_the_end, ArithmeticError),
    "in two contexts": (_in_two_contexts, ArithmeticError),
    "ended": (_ended, Ends),
    "ended in a with": (_written_at_the_end, Ends),
}


@pytest.mark.every_framework
@pytest.mark.parametrize("name", REPLAYED)
def test_a_region_that_raises_in_a_replay(agree, name):
    """The function's contexts and handlers end as in an eager call."""
    make, kind = REPLAYED[name]

    def program(w):
        s = SimpleNamespace(w=w.values(4), v=w.values(4), raises=False)

        @sw.eager
        def live(_):
            if s.raises:
                raise kind

        f, x, kept = w.graph(make(s, live)), w.values(4), []
        for i in range(CALLS):
            s.raises = i in RAISE
            try:
                kept.append(f(x))
            except kind as error:
                kept.append(type(error).__name__)
            yield kept[-2:], s.w, s.v

    agree(program)


@pytest.mark.parametrize("make", [_suppressed, _written_at_the_end])
def test_others_are_replayed_all_the_same(rt, make):
    """That a region has raised inside a `with` says nothing of the next call."""
    s = SimpleNamespace(w=rt.array([0.0]), raises=False)

    @sw.eager
    def live(_):
        if s.raises:
            raise ArithmeticError

    f, x = rt.graph(make(s, live)), rt.array([1.0])
    for i in range(12):
        s.raises = i == 6
        with contextlib.suppress(ArithmeticError):
            f(x)
    before = f.stats().replays
    for _ in range(4):
        f(x)
    assert f.stats().replays == before + 4, f.explain()


def _finally(s, live):
    def fn(x):
        h = x + s.w
        try:
            live(h)
        finally:
            s.v += 1
        return h * 2

    return fn


def _of_its_own(s, live):
    def fn(x):
        h = x + 1
        s.w, s.v = s.v, s.w
        with Counted(s):
            live(h)
        return h

    return fn


def _tried_again(s, live):
    def fn(x):
        h, tries = x + s.w, 0
        while True:
            try:
                live(h)
                break
            except Exception:  # noqa: BLE001 - as people write it
                tries += 1
        s.v += h
        return h * 2

    return fn


@pytest.mark.every_framework
@pytest.mark.parametrize("make", [_finally, _of_its_own, _tried_again])
@pytest.mark.parametrize("other", [1, 2, 5])
def test_a_recording_that_fails_at_a_region(agree, make, other):
    """Nothing that handlers do meanwhile is there twice, and no loop is endless."""

    def program(w):
        s = SimpleNamespace(w=w.values(4), v=w.values(4), calls=0)

        @sw.eager
        def live(h):
            if s.calls == other:
                return [h, {"again": h}]
            return None if s.calls % 2 else h

        f, x = w.graph(make(s, live)), w.values(4)
        for s.calls in range(8):
            yield f(x), s.w, s.v

    agree(program)


def test_a_refusal_that_is_tried_again_for_ever(rt):
    """A function that asks until it is told is not recorded, and does not hang."""

    def fn(x):
        while True:
            try:
                return x * float(str(x[0]))
            except Exception:  # noqa: BLE001 - as people write it
                continue

    f, x = rt.graph(fn), rt.array([3.0])
    for _ in range(4):
        assert float(f(x)[0]) == 9
    assert f.stats().replays == 0


def _hidden(array):
    """Return what gives an array that no guard finds."""
    return itertools.repeat(array).__next__


@pytest.mark.every_framework
@pytest.mark.parametrize("how", ["finally", "with"])
def test_a_recording_that_fails_where_the_first_region_is_passed_something(agree, how):
    """Nothing has run then; and nothing that handlers launch is to run."""

    def program(w):
        s = SimpleNamespace(w=w.values(4), v=w.values(4))
        secret, live = _hidden(w.values(4)), sw.eager(lambda _: None)

        def finally_(x):
            h = x + 1
            s.w, s.v = s.v, s.w
            try:
                live(secret())
            finally:
                s.w += h
            return h * 2

        def with_(x):
            h = x * s.w
            with Counted(s):
                live(secret())
            return h

        f, x = w.graph(finally_ if how == "finally" else with_), w.values(4)
        for _ in range(6):
            yield f(x), s.w, s.v

    agree(program)


def test_what_cannot_be_begun_again_raises_what_the_region_raised(rt):
    """Not that it cannot: a `with` around a region mostly does nothing of its own."""
    # Nobody else can have a variable be without a value again.
    s = SimpleNamespace(seen=ContextVar("seen"), raises=False)

    @sw.eager
    def live(_):
        if s.raises:
            s.seen.set(1)
            raise ArithmeticError("of the region")

    def fn(x):
        with contextlib.nullcontext():
            live(x)
        return x * s.seen.get(2)

    f, x = rt.graph(fn), rt.array([1.0])
    for _ in range(5):
        f(x)
    assert f.stats().replays >= 2
    s.raises = True
    with pytest.raises(ArithmeticError, match="of the region"):
        f(x)
