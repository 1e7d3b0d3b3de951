"""Law 9: what is of another shape than it was is a miss, and never an error."""

from __future__ import annotations

from types import SimpleNamespace

import pytest


def closing(factor):
    return lambda v: v * factor


@pytest.mark.parametrize("calls", [1, 3, 30])
@pytest.mark.parametrize(
    "other", [lambda v: v * 5, closing(7.0)], ids=["without", "with"]
)
def test_a_closure_goes(agree, calls, other):
    """The function that comes instead closes over nothing; then one does again."""

    def program(world):
        model = SimpleNamespace(act=closing(3.0))
        f, x = world.graph(lambda x: model.act(x)), world.values(2)
        for act in (model.act, other, closing(3.0), other):
            model.act = act
            for _ in range(calls):
                yield f(x)

    agree(program)


def attribute_or_none(_, name):
    if name == "factor":
        return 7.0
    raise AttributeError(name)


def any_attribute(_, __):
    return 7.0


@pytest.mark.parametrize("calls", [1, 3, 30])
@pytest.mark.parametrize("get", [attribute_or_none, any_attribute])
def test_attributes_are_computed_later(agree, calls, get):
    """A class is given a way to get any attribute, which shows no dict any more."""

    def program(world):
        class Holder:
            def __init__(self):
                self.factor = 3.0

        held, x = Holder(), world.values(2)
        f = world.graph(lambda x: x * held.factor)
        for _ in range(calls):
            yield f(x)
        Holder.__getattribute__ = get
        for _ in range(calls + 1):
            yield f(x)
        del Holder.__getattribute__
        yield f(x)

    agree(program)
