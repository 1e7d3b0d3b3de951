"""What a failed attempt at recording changed is put back before an eager run."""

from __future__ import annotations

import contextvars
import decimal
import os
import random
from array import array as bytes_array
from collections import Counter, OrderedDict, defaultdict, deque
from types import SimpleNamespace

import numpy as np
import pytest

VARIABLE = contextvars.ContextVar("VARIABLE", default=0)
NAME = "SAPWOOD_TEST_OF_WHAT_IS_PUT_BACK"
COUNT = 0


class Owner:
    count = 0


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    """Leave the state of the process as it was."""
    draws, numpys = random.getstate(), np.random.get_state()
    monkeypatch.setenv(NAME, "")
    with decimal.localcontext(), np.errstate():
        yield
    random.setstate(draws)
    np.random.set_state(numpys)


def _state(make):
    """Return everything that a function may change, besides its arguments."""
    global COUNT  # noqa: PLW0603 - it is one of the things
    COUNT = Owner.count = 0
    VARIABLE.set(0)
    os.environ[NAME] = ""
    decimal.getcontext().prec = 20
    np.seterr(divide="warn")
    random.seed(1)
    np.random.seed(1)
    return SimpleNamespace(
        held=make(np.zeros(3)),
        seen=[1],
        nest=[[1], [2]],
        table={"k": 0},
        ordered=OrderedDict(a=1, b=2),
        lists=defaultdict(list),
        counts=Counter(),
        last=deque([1], 3),
        kinds={1},
        host=np.zeros((2, 3))[:, ::2],
        small=bytearray(b"ab"),
        numbers=bytes_array("d", [1.0]),
        own=Owner(),
        generator=np.random.default_rng(1),
        source=random.Random(1),
        legacy=np.random.RandomState(1),
    )


def _shown(state, *arrays):
    plain = vars(state) | {
        "held": None,
        "host": state.host.tolist(),
        "own": vars(state.own).copy(),
        "generator": state.generator.bit_generator.state,
        "source": state.source.getstate(),
        "legacy": state.legacy.get_state(legacy=False),
    }
    process = (
        *(random.getstate(), np.random.get_state(legacy=False)),
        *(VARIABLE.get(), os.environ[NAME], decimal.getcontext().prec),
        *(np.geterr(), COUNT, Owner.count),
    )
    return repr((plain, process, *(np.asarray(x).tolist() for x in arrays)))


def _count(_):
    global COUNT  # noqa: PLW0603 - that is what is tried
    COUNT += 1


def _count_by_class(_):
    Owner.count += 1


def _attributes(state):
    state.own.new = 1
    state.seen = [*state.seen, 2]


def _nest(state):
    state.nest[1].append(3)
    state.nest.append([4])


def _host(state):
    state.host += 1


def _counts(state):
    state.counts["a"] += 1


def _table(state):
    state.table["k"] += 1
    state.table["new"] = len(state.table)


def _numbers(state):
    state.numbers[0] += 1


def _precision(_):
    decimal.getcontext().prec += 1


def _errors(_):
    np.seterr(divide="raise" if np.geterr()["divide"] == "warn" else "ignore")


def _environment(_):
    os.environ[NAME] += "x"


CHANGES = {
    "nothing else": lambda _: None,
    "a global": _count,
    "a class": _count_by_class,
    "attributes": _attributes,
    "a list": lambda state: state.seen.append(len(state.seen)),
    "lists in a list": _nest,
    "a dict": _table,
    "the order of a dict": lambda state: state.ordered.move_to_end("a"),
    "a defaultdict": lambda state: state.lists["k"].append(len(state.lists)),
    "a counter": _counts,
    "a deque": lambda state: state.last.append(len(state.last)),
    "a set": lambda state: state.kinds.add(len(state.kinds) + 1),
    "a host array": _host,
    "a bytearray": lambda state: state.small.append(3),
    "an array of numbers": _numbers,
    "a context variable": lambda _: VARIABLE.set(VARIABLE.get() + 1),
    "the precision": _precision,
    "what errors do": _errors,
    "the environment": _environment,
    "random": lambda _: random.random(),
    "a source": lambda state: state.source.random(),
    "numpy.random": lambda _: np.random.random(),
    "a generator": lambda state: state.generator.random(),
    "a legacy source": lambda state: state.legacy.rand(),
}


def _program(state, x, w, hidden, change, at):
    """Change something in front of op ``at`` and look at a value, if it is said so."""
    for i in range(4):
        if i == at and hidden():
            change(state)
            if float(x[0]) > 5:
                w *= 2
        w += x * i
        if i == 2:
            state.held = w * 2
    return w + state.held


def _found(graph, make, hidden, change, at, first):
    """Return what each call gave and left, when the ``first`` of them was told."""
    state, x, w, found = _state(make), make(np.arange(3.0)), make(np.ones(3)), []
    f = graph(lambda x, w: _program(state, x, w, hidden, change, at))
    for i in range(6):
        hidden(int(i == first))
        y = f(x, w)
        found.append(_shown(state, x, w, y, state.held))
    return found


@pytest.mark.one_in(4)
@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("name", CHANGES)
def test_all_is_as_after_eager_calls(rt, hidden, name, at):
    """Where the warm-up or the capture alone changes it, and then cannot go on."""
    for first in (0, 1, 2):
        cases = ((lambda fn: fn, np.array), (rt.graph, rt.array))
        expected, found = (
            _found(graph, make, hidden, CHANGES[name], at, first)
            for graph, make in cases
        )
        assert found == expected, first
