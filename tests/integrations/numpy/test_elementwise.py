"""Ufuncs of device arrays are NumPy's, bit for bit, in every layout."""

from __future__ import annotations

import itertools
import operator
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sapwood.integrations.numpy.kernels import UFUNCS

DTYPES = "?bBhHiIlLefdFD"
CALLS = {name: u for name, u in UFUNCS.items() if u.signature is None}
OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "eq"),
    *("ne", "gt", "ge", "and_", "or_", "xor", "lshift", "rshift"),
)
SCALARS = (
    *(0, 1, -1, 2, 7, 300, -129, 2**40, True, 0.0, -0.0, 0.5, 2.0, -1.0, 1e30),
    *(float("nan"), float("inf"), 1j, np.float32(3), np.int8(2), np.float64(0.1)),
    *(np.uint64(5), np.bool_(True), np.complex64(1 + 2j)),
)
SHIFTS = {"left_shift", "right_shift"}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_ufunc_equals_numpy(lab, name):
    """Every ufunc gives NumPy's bits, or its error, for every dtype."""
    ufunc = CALLS[name]
    kinds = "bBIq" if name in SHIFTS else DTYPES
    for number, kind in enumerate(kinds):
        others = (kind, kinds[number - 3]) if ufunc.nin > 1 else (kind,)
        pairs = [lab.pair(other, (3, 4), seed=n) for n, other in enumerate(others)]
        if name in {"power", *SHIFTS}:
            pairs[1] = lab.pair("B", (3, 4))
            pairs[1] = tuple(np.minimum(x, 5) for x in pairs[1])
        if len(pairs) < ufunc.nin:
            continue
        lab.agree(ufunc, *pairs[: ufunc.nin], what=kind)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("first", ["c", "f", "strided", "reversed", "permuted"])
@pytest.mark.parametrize("second", ["c", "f", "strided", "broadcast", "unaligned"])
def test_the_memory_order_of_results_is_numpys(lab, first, second):
    """Results have NumPy's strides for any two layouts, broadcasting included."""
    shapes = [(), (1,), (5,), (2, 3), (1, 3), (2, 1, 3), (2, 4, 3), (3, 3, 3), (0, 3)]
    for a, b in itertools.product(shapes, shapes):
        pairs = (
            lab.pair("f", a, first if a else "c"),
            lab.pair("d", b, second if b else "c"),
        )
        lab.agree(np.add, *pairs, what=(a, b))
        lab.agree(np.negative, pairs[0], what=a)
        lab.agree(np.multiply, pairs[0], pairs[0], what=a)


def _apply(function, scalar, swapped, x):
    return function(scalar, x) if swapped else function(x, scalar)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_with_a_number_equals_numpy(lab, name):
    """Plain numbers are weak and NumPy scalars strong, on both sides."""
    function = getattr(operator, name)
    for kind, scalar in itertools.product("?bBlLefdFD", SCALARS):
        if "shift" in name and not 0 <= getattr(scalar, "real", scalar) < 5:
            continue
        pair = lab.pair(kind)
        lab.agree(partial(_apply, function, scalar, False), pair, what=(kind, scalar))
        if name != "pow" or kind not in "bl":
            lab.agree(
                partial(_apply, function, scalar, True), pair, what=(kind, scalar)
            )


def test_several_outputs(lab):
    """Ufuncs with two outputs return both."""
    x, y = lab.pair("d"), lab.pair("d", seed=1)
    lab.agree(np.divmod, x, y)
    lab.agree(np.modf, x)
    lab.agree(np.frexp, lab.pair("d", layout="f"))


def _in_place(function):
    def run(*arrays):
        copy = arrays[0].copy("K")
        function(copy, *arrays[1:])
        return copy

    return run


def _where_out(x, y, mask):
    np.add(x, y, out=x, where=mask)


def _shifted(x):
    x[1:] += x[:-1]


def _mirrored(x):
    x[:] -= x[::-1]


def _squared(x):
    x **= 2


def _cast(x, y):
    np.multiply(x, y, out=x, casting="unsafe")


def _narrow(x, y):
    np.multiply(x, y, out=x, dtype=np.float64)


def _refused(x, y):
    np.multiply(x, y, out=x)


def test_writing_in_place(lab):
    """``out=``, ``where=``, ``casting=`` and overlapping operands are NumPy's."""
    x, y = lab.pair("d", (6, 4)), lab.pair("d", (6, 4), "f", seed=1)
    mask = lab.pair("?", (6, 4), seed=2)
    ints = lab.pair("i", (6, 4))
    lab.agree(_in_place(_where_out), x, y, mask)
    lab.agree(_in_place(_shifted), x)
    lab.agree(_in_place(_mirrored), x)
    lab.agree(_in_place(_squared), x)
    lab.agree(_in_place(_cast), ints, y)
    lab.agree(_in_place(_narrow), lab.pair("f", (6, 4)), y)
    lab.agree(_in_place(_refused), ints, y)


def test_an_output_is_the_array_that_was_given(lab):
    """In-place operators keep the object, and its views see the new values."""
    _, x = lab.pair("d", (4,))
    before, view = x, x[::2]
    x += 1
    assert x is before
    assert np.add(x, 1, out=x) is x
    lab.same(view, np.asarray(x)[::2])


def test_outer_and_at(lab):
    """The other methods of ufuncs are NumPy's too."""
    x, y = lab.pair("f", (3,)), lab.pair("f", (2, 2), seed=1)
    lab.agree(np.multiply.outer, x, y)
    index = lab.pair("B", (5,))
    index = tuple(np.remainder(i, 3) for i in index)
    lab.agree(_in_place(lambda a, i: np.add.at(a, i, 2.5)), x, index)
    lab.agree(_in_place(lambda a, i: np.subtract.at(a, i, a[:1])), x, index)


def test_division_by_zero_warns_nobody(device, lab):
    """Kernels raise no warnings, as on a GPU: the values say what happened."""
    _, x = lab.pair("d", (3,))
    with np.errstate(all="raise"):
        y = np.log(x * 0 - 1) / (x * 0)
        device.driver.synchronize()
    assert np.isnan(np.asarray(y)).all()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_expressions_equal_numpy(lab, data):
    """A chain of operations of any kind keeps equal to NumPy, step by step."""
    steps = (
        lambda x, _: x.T,
        lambda x, _: x[::2],
        lambda x, _: x[..., ::-1],
        lambda x, y: x + y.sum(),
        lambda x, y: np.maximum(x, y[:1, :1]),
        lambda x, _: x - x.mean(0),
        lambda x, _: x.sum(-1, keepdims=True) * x,
        lambda x, _: np.tanh(x) * 2,
        lambda x, _: x.reshape(-1, 1) * x.dtype.type(2),
        lambda x, _: x @ x.T,
        lambda x, _: np.where(x > 0, x, 0.25),
        lambda x, _: x[[0, -1]],
        lambda x, _: x.astype(np.float32),
        lambda x, _: np.concatenate([x, x * 2]),
        lambda x, _: np.cumsum(x, 1),
    )
    kind = data.draw(st.sampled_from("efdl"))
    layout = data.draw(st.sampled_from(lab.layouts[:4]))
    shape = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    host, array = first, second = lab.pair(kind, shape, layout)
    for number in data.draw(st.lists(st.integers(0, len(steps) - 1), max_size=6)):
        if host.size > 4000:
            break
        host, array = steps[number](host, first), steps[number](array, second)
        lab.same(array, host, number)


@pytest.mark.parametrize("scalar", SCALARS, ids=repr)
def test_where_takes_numbers_as_numpy_does(lab, scalar):
    """Those that the dtype does not hold wrap around, or are refused, as there."""
    for kind in DTYPES:
        pair = lab.pair(kind, (3, 4))
        lab.agree(lambda x: np.where(x > 0, x, scalar), pair, what=kind)
        lab.agree(lambda x: np.where(x > 0, scalar, x), pair, what=kind)


@pytest.mark.parametrize("other", [None, "x", b"x"], ids=repr)
@pytest.mark.parametrize("layout", ["c", "f", "strided", "broadcast"])
def test_what_no_element_equals(lab, other, layout):
    """Comparing is elementwise, whatever it is that an array is compared with."""
    for shape, kind in itertools.product([(3, 4), (0, 3), (1, 3), ()], "f?D"):
        pair = lab.pair(kind, shape, layout if shape else "c")
        lab.agree(lambda x: x == other, pair)
        lab.agree(lambda x: x != other, pair)
        lab.agree(lambda x: other == x, pair)


def test_errors_of_calls_name_what_was_called(lab):
    """And no function behind it."""
    x = lab.up(np.ones((2, 2)))
    for call in (lambda: x.sum(2, 3, 4, 5), lambda: np.sum(x, 2, 3, 4, 5)):
        with pytest.raises(TypeError, match=r"^numpy\.sum\(\) takes"):
            call()
