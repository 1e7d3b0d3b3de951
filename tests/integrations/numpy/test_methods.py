"""Methods and attributes of device arrays are those of NumPy's."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from sapwood.tree.watch.session import Session, entered

call = operator.methodcaller
METHODS = (
    *(call("all"), call("any", 0), call("argmax", 1), call("argmin"), call("conj")),
    *(call("argsort", axis=0, kind="stable"), call("clip", 1, 2), call("cumsum", 0)),
    *(call("cumprod"), call("dot", np.float64(2)), call("max", 1), call("min", 0)),
    *(call("mean", 0), call("prod"), call("repeat", 2), call("round", 1)),
    *(call("std", 0), call("sum", 1, keepdims=True), call("take", [0, 1]), call("var")),
    *(call("trace"), call("diagonal", 1), call("squeeze"), call("swapaxes", 0, 1)),
    *(call("transpose"), call("transpose", 1, 0), call("transpose", (1, 0))),
    *(call("view"), call("view", np.uint8), call("reshape", -1), call("copy", "F")),
    *(call("astype", np.float64), call("astype", np.float32, "F"), call("flatten")),
    *(call("astype", np.int8, casting="safe"), operator.attrgetter("T")),
    *(operator.attrgetter("mT"), operator.attrgetter("real")),
)


@pytest.mark.parametrize("place", range(len(METHODS)))
def test_a_method_equals_numpys(lab, place):
    """Every method gives NumPy's result."""
    for kind, layout in (("d", "c"), ("f", "f"), ("F", "c"), ("l", "c")):
        if kind == "F" and "astype" in repr(METHODS[place]):
            continue
        lab.agree(METHODS[place], lab.pair(kind, (3, 4), layout), what=(kind, layout))


def test_an_array_knows_its_form(lab):
    """Shape, strides and the like are known without reading anything."""
    for layout in lab.layouts:
        host, x = lab.pair("f", (3, 4), layout)
        with entered(Session(tolerant=False)):
            for name in ("shape", "strides", "dtype", "ndim", "size", "nbytes"):
                assert getattr(x, name) == getattr(host, name)
            assert x.itemsize == host.itemsize
            assert x.flags.c_contiguous == host.flags.c_contiguous
            assert np.shape(x) == host.shape
            assert (np.ndim(x), np.size(x), np.size(x, 0)) == (2, 12, len(host))
            assert np.result_type(x, np.int64) == np.result_type(host, np.int64)
            assert not np.iscomplexobj(x)


def test_parts_of_complex_numbers(lab):
    """Real and imaginary parts are views that can be written."""
    host, x = lab.pair("D", (3,))
    for array in (host, x):
        array.real = 1
        array.imag += 2
    lab.same(x, host)
    lab.same(x.real.imag, np.zeros(3))
    assert x.imag.storage is x.storage
    with pytest.raises(TypeError, match="imaginary part of real"):
        x.real.imag = 1


def test_complex_values_in_real_places(lab):
    """Discarding an imaginary part warns where the user is, as in NumPy."""
    _, x = lab.pair("D", (3,))
    for cast in (lambda: x.astype("d"), lambda: operator.setitem(x.real, 0, x[1])):
        with pytest.warns(np.exceptions.ComplexWarning, match="imaginary part"):
            cast()


def test_filling(lab):
    """``fill`` writes one number everywhere."""
    host, x = lab.pair("f", (3, 4))
    host[::2].fill(7)
    x[::2].fill(7)
    lab.same(x, host)


def test_casting_rules(lab):
    """``astype`` keeps the rule given, and may return the array itself."""
    _, x = lab.pair("f")
    with pytest.raises(TypeError, match="according to the rule 'safe'"):
        x.astype(np.int32, casting="safe")
    assert x.astype(np.float32, copy=False) is x
    assert np.astype(x, np.float32, copy=False) is x
    lab.same(np.astype(x, np.float64), np.asarray(x).astype(np.float64))


def test_arrays_compare_as_wholes(lab):
    """``array_equal`` and ``allclose`` answer with a bool."""
    host = np.asarray([1.0, np.nan])
    x, y = lab.up(host), lab.up(host)
    assert np.array_equal(x, y) is False
    assert np.array_equal(x, y, equal_nan=True) is True
    assert np.array_equal(x, x[:1]) is False
    assert np.allclose(x[:1], 1 + 1e-9) is True


def test_an_update_of_a_part_is_one_kernel(lab):
    """``x[1:] += y`` does not end with a copy of the part to itself."""
    _, x = lab.pair("f")
    with entered(Session(tolerant=False)) as session:
        x[1:] += 1
    assert [name for name, _ in session.ops] == ["call:add", "copy"]
    assert len(session.lines) == 1


def test_options_that_do_not_exist_are_named(lab):
    """Options that are not supported raise rather than being ignored."""
    host, x = lab.pair("f")
    with pytest.raises(TypeError, match=r"numpy\.add\(order=\.\.\.\)"):
        np.add(x, 1, order="F")
    with pytest.raises(TypeError, match=r"numpy\.mean\(where=\.\.\.\)"):
        np.mean(x, where=x > 0)
    with pytest.raises(TypeError, match=r"numpy\.var\(mean=\.\.\.\)"):
        np.var(x, mean=x[0])
    with pytest.raises(TypeError, match=r"add\.at cannot write into a host array"):
        np.add.at(host, x.astype(int), 1)
    with pytest.raises(TypeError, match="isnat"):
        np.isnat(x)


def test_copies_by_constructor(lab):
    """``numpy.array`` with ``like=`` copies device arrays on the device."""
    host, x = lab.pair("f", (3,))
    lab.same(np.array(x, like=x), host)
    lab.same(np.array(x, np.float64, ndmin=2, like=x), np.array(host, float, ndmin=2))
    assert np.array(x, copy=None, ndmin=2, like=x).storage is x.storage
    assert np.array(x, like=x).storage is not x.storage
    lab.same(np.flip(x[0]), host[0])
    lab.agree(np.broadcast_arrays, (host, x), (host[None], x[None]))
