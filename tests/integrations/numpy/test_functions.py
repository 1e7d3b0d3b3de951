"""NumPy's functions of device arrays give NumPy's results, in every layout."""

from __future__ import annotations

import copy
import operator
import re
import warnings
from functools import partial

import numpy as np
import pytest

from sapwood.allocator.caching.allocator import Allocator
from sapwood.errors import MisuseError
from sapwood.integrations.numpy import array_from_host
from sapwood.integrations.numpy.functions import FUNCTIONS

ONE = {
    "sum": np.sum,
    "sum0": partial(np.sum, axis=0),
    "sum-1": partial(np.sum, axis=-1, keepdims=True),
    "sum02": partial(np.sum, axis=(0, -1)),
    "sum_dtype": partial(np.sum, axis=0, dtype=np.complex128),
    "sum_initial": partial(np.sum, axis=0, initial=3),
    "sum_nothing": partial(np.sum, axis=()),
    "add.reduce": np.add.reduce,
    "add.reduce_none": partial(np.add.reduce, axis=None),
    "subtract.accumulate": np.subtract.accumulate,
    "add.reduceat": lambda x: np.add.reduceat(x, [0, 2]),
    "prod": partial(np.prod, axis=-1),
    "max": np.max,
    "max0": partial(np.max, axis=0, keepdims=True),
    "min": partial(np.min, axis=-1),
    "mean": np.mean,
    "mean0": partial(np.mean, axis=0),
    "mean01": partial(np.mean, axis=(0, 1), keepdims=True),
    "mean_dtype": partial(np.mean, axis=0, dtype=np.complex64),
    "var": np.var,
    "var0": partial(np.var, axis=0, ddof=1),
    "std": np.std,
    "std-1": partial(np.std, axis=-1, keepdims=True),
    "ptp": partial(np.ptp, axis=0),
    "any": partial(np.any, axis=0),
    "all": np.all,
    "argmax": np.argmax,
    "argmax0": partial(np.argmax, axis=0),
    "argmin": partial(np.argmin, axis=-1, keepdims=True),
    "cumsum": np.cumsum,
    "cumsum0": partial(np.cumsum, axis=0),
    "cumprod": partial(np.cumprod, axis=-1),
    "count_nonzero": partial(np.count_nonzero, axis=0),
    "diff": np.diff,
    "clip": lambda x: np.clip(x, 1, 5),
    "clip_low": lambda x: np.clip(x, 1, None),
    "round": partial(np.round, decimals=1),
    "take": lambda x: np.take(x, [1, 0, 1], axis=0),
    "take_flat": lambda x: x.take([[1, 0], [2, 1]]),
    "repeat": lambda x: np.repeat(x, 2, axis=0),
    "tile": lambda x: np.tile(x, (2, 1)),
    "roll": lambda x: np.roll(x, 1, axis=0),
    "pad": lambda x: np.pad(x, 1),
    "tril": np.tril,
    "triu": np.triu,
    "trace": np.trace,
    "sort": np.sort,
    "argsort": partial(np.argsort, axis=0, kind="stable"),
    "nan_to_num": np.nan_to_num,
    "kron": lambda x: np.kron(x, x[:1]),
    "norm": lambda x: np.linalg.norm(np.abs(x)),
    "fft": np.fft.fft,
    "rfft": lambda x: np.fft.rfft(x.real.astype(np.float64), axis=0),
    "transpose": np.transpose,
    "swapaxes": lambda x: np.swapaxes(x, 0, -1),
    "moveaxis": lambda x: np.moveaxis(x, 0, -1),
    "squeeze": lambda x: np.squeeze(x[:1]),
    "expand_dims": lambda x: np.expand_dims(x, (0, 2)),
    "flip": np.flip,
    "flip0": lambda x: np.flip(x, 0),
    "rot90": np.rot90,
    "diagonal": np.diagonal,
    "split": lambda x: np.split(x, [1], axis=0),
    "array_split": lambda x: np.array_split(x, 2, axis=-1),
    "atleast_3d": np.atleast_3d,
    "broadcast_to": lambda x: np.broadcast_to(x, (2, *x.shape)),
    "ravel": np.ravel,
    "ravelF": lambda x: np.ravel(x, "F"),
    "ravelA": lambda x: np.ravel(x, "A"),
    "ravelK": lambda x: np.ravel(x, "K"),
    "flatten": operator.methodcaller("flatten"),
    "flattenF": lambda x: x.flatten("F"),
    "reshape": lambda x: np.reshape(x, (-1, 2)),
    "reshapeF": lambda x: x.reshape(2, -1, order="F"),
    "reshape_wrong": lambda x: x.reshape(7, 11),
    "real": np.real,
    "imag": lambda x: np.imag(x) if x.dtype.kind == "c" else x,
    "conj": lambda x: x.conj(),
    "copy": np.copy,
    "copyC": lambda x: x.copy(),
    "astype": lambda x: x.astype(np.int32) if x.dtype.kind != "c" else x,
    "astype16": lambda x: x.astype("F"),
    "zeros_like": np.zeros_like,
    "ones_like": lambda x: np.ones_like(x, dtype=np.int8),
    "full_like": lambda x: np.full_like(x, 3),
    "view": lambda x: np.abs(x).view(f"u{np.abs(x).itemsize}"),
    "concatenate": lambda x: np.concatenate([x, x[:1], x]),
    "concatenate-1": lambda x: np.concatenate((x, x.astype("D")), axis=-1),
    "stack": lambda x: np.stack([x, x], axis=1),
    "vstack": lambda x: np.vstack([x, x]),
    "hstack": lambda x: np.hstack([x, x]),
    "where": lambda x: np.where(x > 1, x, 0),
    "where_ints": lambda x: np.where(x, 1, 0),
    "isclose": lambda x: np.isclose(x, x + x.dtype.type(1)),
    "inner": lambda x: np.inner(x, x),
    "vdot": lambda x: np.vdot(x, x),
    "outer": lambda x: np.outer(x[0], x[1]),
    "einsum": lambda x: np.einsum("...i,...i->...", x, x),
    "iterate": list,
    "len": lambda x: x[: len(x) - 1],
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", sorted(ONE))
def test_a_function_equals_numpy(lab, name):
    """Every function gives NumPy's result in all dtypes and layouts."""
    for shape in ((4, 4), (3, 2, 4)):
        for kind in "?bHlefdFD":
            for layout in lab.layouts:
                pair = lab.pair(kind, shape, layout)
                lab.agree(ONE[name], pair, what=(shape, kind, layout))


@pytest.mark.parametrize("kind", "lefdF")
def test_products_of_matrices_equal_numpy(lab, kind):
    """``matmul`` and ``dot`` equal NumPy's for vectors, stacks and transposes."""
    shapes = [(4,), (4, 4), (3, 4), (4, 3), (2, 3, 4), (2, 4, 3), (1, 4, 4), (5, 1, 4)]
    for a in shapes:
        for b in shapes:
            for first in ("c", "f", "strided"):
                x, y = lab.pair(kind, a, first), lab.pair(kind, b, "c", seed=1)
                lab.agree(np.matmul, x, y, what=(a, b))
                lab.agree(np.dot, x, y, what=(a, b))
                lab.agree(lambda p, q: p @ q.T, x, y, what=(a, b))
    zero = lab.pair(kind, (0, 4))
    lab.agree(lambda p, q: q @ p.T, zero, lab.pair(kind, (3, 4)))


@pytest.mark.filterwarnings("ignore:Mean of empty", "ignore:Degrees of freedom")
def test_shapes_of_no_elements_and_no_dimensions(lab):
    """Arrays of size zero and of no dimensions go through everything."""
    for shape in ((), (0,), (0, 3), (3, 0), (1,)):
        pair = lab.pair("f", shape)
        for function in (
            *(np.sum, np.mean, np.std, np.max, np.argmax, np.ravel, np.flip),
            *(np.copy, np.transpose, np.atleast_2d, np.cumsum, np.zeros_like),
            lambda x: x[...],
            lambda x: x[None],
            lambda x: np.where(x > 0, x, 1),
            lambda x: np.concatenate([np.atleast_1d(x), np.atleast_1d(x)]),
            lambda x: x.astype("d") + 1,
        ):
            lab.agree(function, pair, what=(shape, function))


def test_writing_into_a_given_output(lab):
    """``out=`` of functions is written in place and returned."""
    x, out = lab.pair("f", (3, 4)), lab.pair("d", (3,), seed=1)
    for function in (
        lambda a, out: np.sum(a, axis=1, out=out),
        lambda a, out: np.mean(a, 1, out=out),
        lambda a, out: np.std(a, 1, out=out),
        lambda a, out: np.max(a, 1, out),
        lambda a, out: np.cumsum(a[:, 0], out=out),
    ):
        lab.agree(function, x, out)
    _, target = out
    assert np.add.reduce(x[1], 1, out=target) is target


def test_new_arrays_like_another(lab):
    """``like=`` makes device arrays, equal to NumPy's host arrays."""
    host, x = lab.pair()
    for function in (
        partial(np.zeros, (2, 3)),
        partial(np.ones, 3, np.int8, order="F"),
        partial(np.full, (2, 2), 7),
        partial(np.full, (2, 2), 0.5, np.float32),
        partial(np.arange, 5),
        partial(np.arange, 1, 2, 0.25),
        partial(np.arange, 5, dtype=np.float32),
        partial(np.eye, 3),
        partial(np.eye, 3, 4, k=1, dtype=np.float32),
        partial(np.identity, 2),
        partial(np.array, [[1, 2], [3, 4]], np.float32),
        partial(np.asarray, np.asfortranarray(np.ones((2, 3)))),
    ):
        lab.same(function(like=x), function(like=host), function)
    assert np.asarray(x, like=x) is x


@pytest.mark.parametrize("layout", ["c", "f", "strided", "permuted", "broadcast"])
def test_host_data_keeps_its_memory_order(lab, layout):
    """Uploads and downloads keep values, dtype and order."""
    for kind in "?bHlefdFD":
        host, _ = lab.pair(kind, (2, 3, 4), layout)
        array = lab.up(host)
        expected = host.copy(order="K")
        lab.same(array, expected)
        back = np.asarray(array)
        assert back.strides == expected.strides
        back[...] = 0
        lab.same(array, expected)


def test_copies_are_new_memory(lab):
    """``copy`` and ``deepcopy`` copy on the device."""
    host, x = lab.pair("d", (3, 4), "f")
    copies = [copy.copy(x), copy.deepcopy(x), x.copy("K"), np.copy(x)]
    x += 1
    for made in copies:
        assert made.storage is not x.storage
        lab.same(made, host.copy("K"))


def test_views_share_their_storage(lab):
    """What is a view in NumPy is a view here, and what is a copy is a copy."""
    for layout in lab.layouts:
        host, x = lab.pair("d", (4, 4), layout)
        for function in (
            *(np.transpose, np.ravel, np.squeeze, np.real, np.diagonal, np.asarray),
            *(lambda a: a.ravel("F"), lambda a: a.ravel("K"), lambda a: a[1:, None]),
            *(lambda a: a.reshape(2, 8), lambda a: a.reshape(-1, order="F")),
            *(lambda a: a[[0, 1]], lambda a: a.flatten(), lambda a: a.astype("d")),
        ):
            if function is np.asarray:
                continue
            shared = np.shares_memory(function(host), host)
            assert (function(x).storage is x.storage) == shared, (layout, function)


def test_unsupported_functions_are_named(lab):
    """Functions that do not exist here raise, naming themselves and a way out."""
    _, x = lab.pair()
    for name, function in {
        "linalg.svd": np.linalg.svd,
        "median": np.median,
        "histogram": np.histogram,
        "fft.fftn": np.fft.fftn,
    }.items():
        assert function not in FUNCTIONS
        with pytest.raises(TypeError, match=rf"numpy\.{name};.*asarray"):
            function(x)
    with pytest.raises(TypeError, match=r"repeat.*list of integers"):
        np.repeat(x, x.astype(np.int64))


def test_host_arrays_do_not_mix(lab):
    """A host array among the operands is an error that names the way in."""
    host, x = lab.pair()
    for function in (
        lambda: x + host,
        lambda: host * x,
        lambda: np.add(x, x, out=host),
        lambda: np.concatenate([x, host]),
        lambda: np.where(x > 0, x, host),
        lambda: x @ host.T,
        lambda: np.multiply.outer(x, host),
    ):
        with pytest.raises(TypeError, match=r"rt\.array|host array"):
            function()
    with pytest.raises(TypeError, match=r"numpy\.copyto"):
        np.copyto(host, x)


@pytest.mark.parametrize("value", ["text", object(), np.datetime64(1, "s")])
def test_other_dtypes_are_named(lab, value):
    """Strings, objects and dates have no place on the device."""
    with pytest.raises(
        TypeError, match=re.escape(f"dtype {np.asarray([value]).dtype}")
    ):
        lab.up(np.asarray([value]))


def test_read_only_views_stay_so(lab):
    """Broadcast views and diagonals refuse writes, as in NumPy."""
    _, x = lab.pair("d", (3, 3))
    for view in (np.broadcast_to(x, (2, 3, 3)), x.diagonal()):
        with pytest.raises(ValueError, match="read-only"):
            np.add(view, 1, out=view)


def test_operands_of_two_devices(lab):
    """Arrays of different devices are a misuse, whatever they hold."""
    from sapwood.driver.emulated import Emulated
    from sapwood.integrations.numpy import array_from_host
    from sapwood.memory.device import Device

    other = Device(Emulated(), Allocator)
    foreign = array_from_host(other, np.ones(3))
    with pytest.raises(MisuseError, match=r"numpy\.add.*different devices"):
        lab.up(np.ones(3)) + foreign
    del foreign
    other.close()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["mean", "var", "std"])
def test_too_few_elements_are_no_fault_of_the_stream(device, name):
    """Where warnings are errors, what NumPy warns of is the same value, and no more."""
    function = getattr(np, name)
    for host, options in (
        (np.zeros((0, 3)), {"axis": 0}),
        (np.zeros(0), {}),
        *([(np.ones((1, 3)), {"axis": 0, "ddof": 1})] if name != "mean" else ()),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = function(host, **options)
        found = np.asarray(function(array_from_host(device, host), **options))
        np.testing.assert_array_equal(found, expected)
        assert np.asarray(array_from_host(device, np.ones(2)) + 1).tolist() == [2, 2]
