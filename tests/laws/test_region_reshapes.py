"""Eager regions that give an array another shape, or other memory, in place."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import sapwood as sw

pytestmark = [
    pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning"),
    pytest.mark.every_framework,
]

CALLS = 12


def _turn(array):
    """Give an array another shape in place, or the one that it had."""
    if hasattr(array, "unsqueeze_"):
        (array.unsqueeze_ if array.dim() == 1 else array.squeeze_)(0)
    elif type(array).__module__.startswith("cupy"):
        array.shape = (1, 4) if array.ndim == 1 else (4,)


def _swap(one, other):
    """Have two tensors change places, as averaged weights do."""
    if hasattr(one, "untyped_storage"):
        one.data, other.data = other.data, one.data


def _of_state(s, change):
    """A region changes an array that the function reads before it and behind."""
    region = sw.eager(lambda: change() if s.acts else None)

    def fn(x):
        h = x * s.it
        region()
        return h + s.it

    return fn


def _named(s, w):
    s.it = w.values(4)
    return _of_state(s, lambda: _turn(s.it))


def _swapped(s, w):
    s.it, s.other = w.values(4), w.values(4)
    return _of_state(s, lambda: _swap(s.it, s.other))


def _passed(s, _):
    region = sw.eager(lambda x: _turn(x) if s.acts else None)

    def fn(x):
        h = x * 2
        region(x)
        return h + x

    return fn


def _made(s, _):
    region = sw.eager(lambda h: _turn(h) if s.acts else None)

    def fn(x):
        h = x * 2
        region(h)
        return h + 1

    return fn


def _made_and_returned(s, _):
    region = sw.eager(lambda h: _turn(h) if s.acts else None)

    def fn(x):
        h = x * 2
        region(h)
        return h

    return fn


MAKES = _named, _swapped, _passed, _made, _made_and_returned


def _halved(s, _):
    """What the function has of it already shows what it does to it behind."""
    region = sw.eager(lambda h: _turn(h) if s.acts else None)

    def fn(x):
        h = x * 2
        head = h[:2]
        region(h)
        h *= 3
        return head + 0, h

    return fn


def _bound_to_another(s, w):
    s.it = w.values(4)

    @sw.eager
    def region(h):
        if s.acts and hasattr(h, "untyped_storage"):
            h.data = s.it

    def fn(x):
        h = x * 2
        region(h)
        h += 1
        return h + s.it

    return fn


def _twice(s, w):
    s.it = w.values(4)
    first = sw.eager(lambda h: _turn(h) if s.acts else None)
    second = sw.eager(lambda _: _turn(s.it) if s.acts else None)

    def fn(x):
        h = x * s.it
        first(h)
        h = h + 1
        second(h)
        return h * s.it

    return fn


MAKES += _halved, _bound_to_another, _twice


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize(
    "acts", [range(CALLS), range(0, CALLS, 2), (1,), (2,), (3,), (8,), (8, 9)]
)
def test_what_a_region_does_in_place(agree, make, acts):
    """Each call is as an eager one, be it the first in which a region does so."""

    def program(w):
        s = SimpleNamespace(acts=False, it=None)
        f = w.graph(make(s, w))
        for i in range(CALLS):
            s.acts, x = i in acts, w.values(4)
            yield f(x), x, s.it

    agree(program)


def test_a_region_that_has_memory_grow(agree):
    """What lay there before nobody has: the function is left alone."""

    def program(w):
        @sw.eager
        def region(h):
            if hasattr(h, "untyped_storage"):
                h.resize_(4096).zero_()

        def fn(x):
            h = x * 2
            region(h)
            return h + 1

        f = w.graph(fn)
        for _ in range(CALLS):
            yield f(w.values(4))

    agree(program)
