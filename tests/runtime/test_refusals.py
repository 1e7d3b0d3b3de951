"""What a call or a mark is refused for is named: the argument, and the function."""

from __future__ import annotations

import os
import re
import warnings

import numpy as np
import pytest

import sapwood as sw


@pytest.fixture
def rt():
    """Return a runtime."""
    with sw.Runtime("emulated") as rt:
        yield rt


@pytest.fixture
def foreign():
    """Return an array of another runtime."""
    with sw.Runtime("emulated") as other:
        yield other.array(np.ones(3))


PLACES = {
    "x": lambda add, x, wrong: add(wrong, x),
    "y": lambda add, x, wrong: add(x, wrong),
    "y['a'][1]": lambda add, x, wrong: add(x, {"a": [x, wrong]}),
    "more[0]": lambda add, x, wrong: add(x, x, wrong),
    "scale": lambda add, x, wrong: add(x, x, scale=wrong),
}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_a_refused_argument_is_named(rt, foreign, place, recorded):
    """Host arrays and those of other runtimes, wherever they are passed."""

    @rt.graph(fullgraph=True)
    def add(x, y, *more, scale=1.0):
        del y, more, scale
        return x + 1

    x = rt.array(np.ones(3))
    if recorded:
        for _ in range(4):
            add(x, x)
    start = rf"add cannot take {re.escape(place)}: an? "
    with pytest.raises(TypeError, match=rf"{start}host array of float64\[3\]"):
        PLACES[place](add, x, np.ones(3))
    with pytest.raises(sw.MisuseError, match=rf"{start}array of another runtime"):
        PLACES[place](add, x, foreign)
    assert np.asarray(add(x, x)).tolist() == [2] * 3


def test_what_cannot_be_marked_is_refused_as_such():
    """An eager region is marked, not graphed."""

    def numbers():
        yield 1

    for wrong in (5, numbers):
        with pytest.raises(sw.MisuseError, match="Mark a"):
            sw.eager(wrong)


def test_a_runtime_shows_what_it_is():
    """Its device, its limit if it has one, and whether it is closed."""
    with sw.Runtime("emulated") as rt:
        assert repr(rt) == "<Runtime on emulated>"
    assert repr(rt) == "<Runtime on emulated, closed>"
    with sw.Runtime("emulated", memory_limit="8MiB") as rt:
        assert repr(rt) == "<Runtime on emulated, limit 8 MiB>"


def test_a_forked_child_is_told_what_it_can_do(rt):
    """Its parent's device is not its own to use or close; there are two ways out."""
    rt.array(np.ones(3))
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests' threads
        child = os.fork()
    if not child:
        try:
            rt.close()
            rt.array(np.ones(3))
        except BaseException as error:  # noqa: BLE001 - the parent judges it
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as told:
        assert "make a Runtime in this process, or start processes by spawn" in (
            told.read()
        )
