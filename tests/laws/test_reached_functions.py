"""Law 9: what a function or class tells of itself, and attributes they had not."""

from __future__ import annotations

from contextlib import ContextDecorator, contextmanager
from types import SimpleNamespace

import pytest


def made(factor):
    def act(v):
        return v * factor

    return act


def of_getattr(helper, x):
    return x * getattr(helper, "scale", 1.0)


def of_hasattr(helper, x):
    return x * (5.0 if hasattr(helper, "scale") else 1.0)


def of_an_error(helper, x):
    try:
        return x * helper.scale
    except AttributeError:
        return x


def of_a_computed_name(helper, x):
    return x * getattr(helper, "sc" + "ale"[:3], 1.0)


def of_its_dict(helper, x):
    return x * sum(vars(helper).values()) + len(helper.__dict__)


@pytest.mark.parametrize("calls", [1, 3, 20])
@pytest.mark.parametrize(
    "read", [of_getattr, of_hasattr, of_an_error, of_a_computed_name, of_its_dict]
)
def test_the_first_attribute_of_a_function(agree, read, calls):
    """Nothing but its absence told before that it could be there."""

    def program(world):
        helper = made(3.0)
        model, x = SimpleNamespace(act=helper), world.values(2)
        f = world.graph(lambda x: read(model.act, x) + helper(x))
        for value in (None, 5.0, 7.0, None):
            if value is None:
                vars(helper).pop("scale", None)
            else:
                helper.scale = value
            for _ in range(calls):
                yield f(x)

    agree(program)


READERS = {
    "__name__": lambda it: it.__name__,
    "__qualname__": lambda it: it.__qualname__,
    "__module__": lambda it: it.__module__,
    "__doc__": lambda it: it.__doc__,
}


def told(kind, name, text):
    """Return what tells a text of itself by that name."""
    it = type("Act", (), {}) if kind == "class" else made(3.0)
    setattr(it, name, text)
    return type("Act", (), {"act": it})().act if kind == "method" else it


@pytest.mark.one_in(2)
@pytest.mark.parametrize("calls", [1, 3, 20])
@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["function", "method", "class"])
def test_what_they_tell_of_themselves(agree, kind, name, computed, calls):
    """A table by a name: another function from the same factory has another."""
    read = READERS[name]
    if computed:

        def read(it):
            return getattr(it, "".join(["__", name[2:]]))

    table = {"silu": 2.0, "relu": 3.0}

    def program(world):
        model, x = SimpleNamespace(act=told(kind, name, "silu")), world.values(2)
        f = world.graph(lambda x: x * table[read(model.act)])
        for text in ("silu", "relu", "silu"):
            model.act = told(kind, name, text)
            for _ in range(calls):
                yield f(x)
        for text in ("relu", "silu"):
            setattr(getattr(model.act, "__func__", model.act), name, text)
            for _ in range(calls):
                yield f(x)

    agree(program)


@pytest.mark.parametrize("calls", [1, 3, 20])
def test_annotations(agree, calls):
    """They are a dict, which may be changed or replaced."""

    def program(world):
        helper, x = made(3.0), world.values(2)
        f = world.graph(lambda x: x * helper.__annotations__.get("v", 1.0))
        for value in (None, 2.0, 3.0):
            if value is not None:
                helper.__annotations__["v"] = value
            for _ in range(calls):
                yield f(x)
        for value in (3.0, 5.0):
            helper.__annotations__ = {"v": value}
            for _ in range(calls):
                yield f(x)

    agree(program)


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("kind", ["generator", "class"])
def test_what_a_context_manager_decorates(agree, kind):
    """What is entered in each call reads and writes what is the user's."""

    def program(world):
        told, now, rates = [], {"k": 1.0}, {"rate": 1.0}

        @contextmanager
        def entered():
            told.append("in")
            now["k"] = rates["rate"]
            yield

        class Entered(ContextDecorator):
            def __enter__(self):
                told.append("in")
                now["k"] = rates["rate"]

            def __exit__(self, *_):
                told.append("out")

        @(entered() if kind == "generator" else Entered())
        def helper(x):
            return x * now["k"]

        f, x = world.graph(lambda x: helper(x)), world.values(2)
        for call in range(10):
            if call == 6:
                rates["rate"] = 3.0
            yield f(x), len(told), now["k"]

    agree(program)
