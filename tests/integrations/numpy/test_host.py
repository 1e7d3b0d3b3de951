"""Values cross to the host only when asked, and never unnoticed in a session."""

from __future__ import annotations

import operator
import pickle
from functools import partial

import numpy as np
import pytest

from sapwood.errors import CaptureError, StaleOutput
from sapwood.integrations.numpy import make_generator
from sapwood.tree.watch.session import Session, entered

READS = {
    "float(x)": float,
    "int(x)": int,
    "bool(x)": bool,
    "complex(x)": complex,
    "numpy.asarray(x)": np.asarray,
    "x.item()": lambda x: x.item(),
    "x.tolist()": lambda x: x.tolist(),
    "format(x)": "{:.1f}".format,
    "x[mask]": lambda x: x.reshape(1)[x.reshape(1) > 0].size,
    "numpy.nonzero(x)": lambda x: x.reshape(1).nonzero()[0].size,
    "numpy.unique(x)": lambda x: np.unique(x).size,
    "allclose": lambda x: np.allclose(x, 3),
    "array_equal": lambda x: np.array_equal(x, x),
}
ENTRIES = {
    "rt.array": lambda lab, _: lab.up(np.ones(2)),
    "like": lambda _, x: np.array(np.ones(1), like=x),
    "assignment": lambda _, x: operator.setitem(x, ..., np.ones(1)),
    "index": lambda _, x: x.reshape(1)[np.zeros(1, int)],
    "generator": lambda lab, _: make_generator(lab.device, 1),
}


@pytest.mark.parametrize("name", sorted(READS))
def test_reading_a_value(lab, name):
    """Outside sessions a read gives the host's value."""
    host = np.asarray(3.0)
    found = READS[name](lab.up(host))
    assert found == READS[name](host)
    assert type(found) is type(READS[name](host))


@pytest.mark.parametrize("name", sorted(READS))
def test_reading_in_a_session(lab, name):
    """A session refuses reads, by name and line; a tolerant one notes the first."""
    x = lab.up(np.asarray(3.0))
    with entered(Session(tolerant=False)), pytest.raises(CaptureError) as caught:
        READS[name](x)
    assert caught.value.what == f"{name} needs a value on the host"
    assert caught.value.where
    assert "sw.eager" in caught.value.remedy
    with entered(Session(tolerant=True)) as session:
        READS[name](x)
    assert session.unrecordable.what == caught.value.what


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_host_data_in_a_session(lab, name):
    """A session refuses host data that enters, before anything has changed."""
    x = lab.up(np.asarray(3.0))
    with (
        entered(Session(tolerant=False)),
        pytest.raises(CaptureError, match="host data enters the device"),
    ):
        ENTRIES[name](lab, x)
    assert float(x) == 3
    with entered(Session(tolerant=True)) as session:
        ENTRIES[name](lab, x)
    assert "host data" in session.unrecordable.what


def test_printing(lab):
    """Printing shows values, and so a session refuses it."""
    x = lab.up(np.asarray([1.0, 2.5]))
    assert repr(x) == "sapwood.Array([1. , 2.5], dtype=float64)"
    assert str(x) == f"{x}" == "[1.  2.5]"
    for tell in (repr, str, format):
        with entered(Session(tolerant=False)), pytest.raises(CaptureError):
            tell(x)


def test_a_session_hears_of_every_op(lab):
    """Each kernel is told with its constants, whatever its addresses are."""
    x, y = lab.up(np.ones(3)), lab.up(np.ones(3))
    heard = []
    for function in (lambda a: a + 1, lambda a: a + 1.0, lambda a: (a + 1).sum()):
        with entered(Session(tolerant=False)) as first:
            function(x)
        with entered(Session(tolerant=False)) as second:
            function(y)
        assert first.ops == second.ops
        heard.append(first.ops)
    assert [name for name, _ in heard[2]] == ["call:add", "reduce:add"]
    assert heard[0] == heard[2][:1]
    assert heard[0] != heard[1]


def test_stale_arrays_cannot_be_used(lab):
    """A revoked storage refuses every use of every view."""
    x = lab.up(np.ones(3))
    view = x[1:]
    x.storage.stale = "a new step began"
    uses = (
        *(np.negative, np.asarray, partial(operator.iadd, 1), lambda a: a[[0]]),
        lambda a: operator.setitem(a, ..., 1),
        lambda a: np.add(1.0, 2.0, out=a),
    )
    for use in uses[:2] + uses[3:]:
        for array in (x, view):
            with pytest.raises(StaleOutput, match="a new step began"):
                use(array)
    assert "stale: a new step began" in repr(x)


def test_iteration_reads_nothing(lab):
    """Iterating gives views of the first dimension."""
    x = lab.up(np.arange(6).reshape(3, 2))
    with entered(Session(tolerant=False)):
        rows = list(x)
    assert all(row.storage is x.storage for row in rows)
    for row, expected in zip(rows, np.arange(6).reshape(3, 2), strict=True):
        lab.same(row, expected)
    with pytest.raises(TypeError, match="0-d"):
        iter(x[0, 0])
    with pytest.raises(TypeError, match="unsized"):
        len(x[0, 0])


def test_what_an_array_is(lab):
    """Equality is elementwise and hashing by identity; pickling names the way."""
    x = lab.up(np.ones(2))
    assert hash(x) == hash(x)
    assert len({x, x[:], x}) == 2
    lab.same(x == 1, np.ones(2) == 1)
    with pytest.raises(TypeError, match=r"pickle numpy\.asarray"):
        pickle.dumps(x)
    with pytest.raises(ValueError, match="copy=False"):
        np.asarray(x, copy=False)
    with pytest.raises(ValueError, match="ambiguous"):
        bool(x)
    assert [1, 2][lab.up(np.asarray(1))] == 2
    assert np.asarray(x, np.float32).dtype == np.float32


def test_spans(lab):
    """The span of a view is the bytes that its elements lie in."""
    x = lab.up(np.arange(12.0).reshape(3, 4))
    low = x.address
    assert x.span == (low, low + 96)
    assert x[1:, ::-2].span == (low + 40, low + 96)
    assert x[::-1].span == x.span
    assert x[:0].span[0] == x[:0].span[1]
    assert np.broadcast_to(x[0], (9, 4)).span == (low, low + 32)
