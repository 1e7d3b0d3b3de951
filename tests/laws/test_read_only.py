"""Law 9: that an array is read-only is part of what it looks like, wherever it is."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.rig import CUDA

_CALLS = 6


class Held:
    """Holds an array that others may take the place of."""

    def __init__(self, array):
        self.array = array


@pytest.fixture(autouse=True)
def _flagged(request):
    if request.node.callspec.params["make_rig"] == CUDA:
        pytest.skip("CuPy's arrays have no such flag")


def _read_only(array):
    """Return a view of the same bytes, at the same address, of the same shape."""
    return np.broadcast_to(array, array.shape)


def _adds(y):
    y += 1


def _tells(x):
    return x * (2 if x.flags.writeable else 3)


def test_an_argument_that_is_read_only_is_not_written(rt):
    """Not though a recording fits that writes the same bytes."""
    f, y = rt.graph(_adds), rt.array(np.zeros(4))
    for _ in range(_CALLS):
        f(y)
    assert f.stats().replays
    for _ in range(3):
        with pytest.raises(ValueError, match="read-only"):
            f(_read_only(y))
    assert np.asarray(y).tolist() == [_CALLS] * 4
    f(y)
    assert np.asarray(y).tolist() == [_CALLS + 1] * 4


@pytest.mark.parametrize("first", [True, False], ids=["writeable", "read-only"])
@pytest.mark.parametrize("moves", [True, False], ids=["that moves", "that stays"])
def test_a_function_may_ask_it_of_an_argument(rt, first, moves):
    """Of arrays at the address of the recorded one, and of others."""
    f, lasting = rt.graph(_tells), rt.array(np.ones(4))
    for writeable in [first, not first] * 2:
        for _ in range(_CALLS):
            x = rt.array(np.ones(4)) if moves else lasting
            found = f(x if writeable else _read_only(x))
            assert np.asarray(found).tolist() == [2 if writeable else 3] * 4
    assert f.stats().warmups == 2
    assert f.stats().replays > _CALLS


@pytest.mark.parametrize("first", [True, False], ids=["writeable", "read-only"])
def test_a_function_may_ask_it_of_what_it_reads(rt, first):
    """An array in a slot gives way to a view of itself."""
    array = rt.array(np.ones(4))
    held = Held(None)
    f = rt.graph(lambda x: x * (2 if held.array.flags["WRITEABLE"] else 3))
    x = rt.array(np.ones(4))
    for writeable in [first, not first] * 2:
        held.array = array if writeable else _read_only(array)
        for _ in range(_CALLS):
            assert np.asarray(f(x)).tolist() == [2 if writeable else 3] * 4


def test_what_it_reads_is_not_written_where_it_is_read_only(rt):
    """As eagerly: a slot's array, too."""
    held = Held(rt.array(np.zeros(4)))

    def adds(x):
        held.array += x

    f, x, array = rt.graph(adds), rt.array(np.ones(4)), held.array
    for _ in range(_CALLS):
        f(x)
    held.array = _read_only(array)
    with pytest.raises(ValueError, match="read-only"):
        f(x)
    assert np.asarray(array).tolist() == [_CALLS] * 4


def test_a_result_is_as_eager_makes_it(rt):
    """Read-only where that is, in every replay."""
    f, x = rt.graph(lambda x: (x * 2, _read_only(x * 3))), rt.array(np.ones(4))
    for _ in range(_CALLS):
        one, other = f(x)
        assert (one.flags.writeable, other.flags.writeable) == (True, False)


def test_flags_are_read_not_set(rt):
    """Looks are for life; the remedy makes a read-only view."""
    x = rt.array(np.ones(4))
    with pytest.raises(AttributeError, match="broadcast_to"):
        x.flags.writeable = False
    with pytest.raises(AttributeError, match="broadcast_to"):
        x.flags["WRITEABLE"] = False
    assert x.flags.writeable
    assert x.flags == np.ones(4).view().flags
    assert not _read_only(x).flags.writeable


def test_a_read_only_array_is_not_assigned_to_itself(rt):
    """Which would change nothing, and is an error of NumPy's all the same."""
    x = _read_only(rt.array(np.ones(4)))
    with pytest.raises(ValueError, match="read-only"):
        x[...] = x
