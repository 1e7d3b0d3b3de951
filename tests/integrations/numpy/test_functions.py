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
from sapwood.errors import CaptureError, MisuseError
from sapwood.integrations.numpy import array_from_host
from sapwood.tree.watch.session import Session, entered
from tests.integrations.numpy.conftest import LAYOUTS

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
    "append": lambda x: np.append(x, x[:1], axis=0),
    "insert": lambda x: np.insert(x, [0, 2], 3, axis=0),
    "delete": lambda x: np.delete(x, [1, -1], axis=-1),
    "delete_slice": lambda x: np.delete(x, slice(None, None, 2), axis=0),
    "diagflat": np.diagflat,
    "diag": lambda x: np.diag(x[0, ..., 0]) if x.ndim > 2 else np.diag(x, -1),
    "meshgrid": lambda x: np.meshgrid(x[0, :2], x[1, :2], indexing="ij"),
    "resize": lambda x: np.resize(x, (3, 7)),
    "vander": lambda x: np.vander(x.ravel()[:4], 3),
    "partition": lambda x: np.partition(x, 1, axis=-1),
    "argpartition": lambda x: x.argpartition((0, 2), axis=0),
    "lexsort": lambda x: np.lexsort((x[0], x[1])),
    "sort_complex": np.sort_complex,
    "correlate": lambda x: np.correlate(x.ravel()[:5], x.ravel()[:3], "full"),
    "ediff1d": lambda x: np.ediff1d(x, to_end=x.ravel()[0]),
    "gradient": lambda x: np.gradient(x, axis=0),
    "gradients": np.gradient,
    "interp": lambda x: np.interp(x.real.ravel(), [0.0, 1.0, 2.0], [1.0, 0.0, 4.0]),
    "polyval": lambda x: np.polyval([1, 2, 3], x),
    "trapezoid": lambda x: np.trapezoid(x, axis=0),
    "unwrap": lambda x: np.unwrap(x.real.astype("d"), axis=0),
    "angle": lambda x: np.angle(x, deg=True),
    "digitize": lambda x: np.digitize(np.abs(x), [0.5, 2.0, 9.0]),
    "i0": lambda x: np.i0(x.real.astype("d")),
    "iscomplex": np.iscomplex,
    "isreal": np.isreal,
    "isin": lambda x: np.isin(x, x[0]),
    "packbits": lambda x: np.packbits(x != 0, axis=-1),
    "unpackbits": lambda x: np.unpackbits((x != 0).view(np.uint8), axis=0),
    "select": lambda x: np.select([x != 0, x == 1], [x, x * 2], 7),
    "choose": lambda x: np.choose([0, 1, 0, 1], (x[0], x[1])),
    "sinc": np.sinc,
    "isposinf": lambda x: np.isposinf(np.abs(x)),
    "average": lambda x: np.average(x, axis=0),
    "block": lambda x: np.block([[x, x], [x, x]]),
    "cov": lambda x: np.cov(x.reshape(len(x), -1)),
    "corrcoef": lambda x: np.corrcoef(x.reshape(len(x), -1)),
    "median": np.median,
    "median0": lambda x: np.median(x, axis=0),
    "quantile": lambda x: np.quantile(np.abs(x), [0.25, 0.5], axis=-1),
    "percentile": lambda x: np.percentile(np.abs(x), 30, method="nearest"),
    "nansum": lambda x: np.nansum(x, axis=0),
    "nanprod": np.nanprod,
    "nanmax": lambda x: np.nanmax(x, axis=-1),
    "nanmin": np.nanmin,
    "nanmean": lambda x: np.nanmean(x, axis=0),
    "nanstd": lambda x: np.nanstd(x, axis=0, ddof=1),
    "nanvar": np.nanvar,
    "nanmedian": lambda x: np.nanmedian(x, axis=0),
    "nanquantile": lambda x: np.nanquantile(np.abs(x), 0.5, axis=0),
    "nancumsum": lambda x: np.nancumsum(x, axis=0),
    "sliding_window_view": lambda x: np.lib.stride_tricks.sliding_window_view(x, 2, 0),
    "fftn": np.fft.fftn,
    "ifftn": np.fft.ifftn,
    "rfftn": lambda x: np.fft.rfftn(x.real.astype("d")),
    "irfft2": lambda x: np.fft.irfft2(x),
    "hfft": np.fft.hfft,
    "fftshift": np.fft.fftshift,
    "linalg.cross": lambda x: np.linalg.cross(x[..., :3], x[..., 1:]),
    "linalg.matmul": lambda x: np.linalg.matmul(x, np.linalg.matrix_transpose(x)),
    "linalg.outer": lambda x: np.linalg.outer(x[0].ravel(), x[1].ravel()),
    "linalg.trace": lambda x: np.linalg.trace(x, offset=1),
    "linalg.vecdot": lambda x: np.linalg.vecdot(x, x),
    "linalg.diagonal": np.linalg.diagonal,
    "linalg.tensordot": lambda x: np.linalg.tensordot(x, x, axes=((0,), (0,))),
    "multi_dot": lambda x: np.linalg.multi_dot([x[0], x[0].T, x[0]]),
    "vector_norm": lambda x: np.linalg.vector_norm(x, axis=-1),
    "matrix_norm": np.linalg.matrix_norm,
    "tuple_index": lambda x: x[(0, -1), ...],
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


SOLVED = {
    "cholesky": lambda x: np.linalg.cholesky(
        x @ x.swapaxes(-1, -2).conj() + np.eye(x.shape[-2], like=x)
    ),
    "cond": np.linalg.cond,
    "det": np.linalg.det,
    "eigh": lambda x: np.linalg.eigh(x + x.swapaxes(-1, -2).conj()),
    "eigvalsh": lambda x: np.linalg.eigvalsh(x, "U"),
    "inv": np.linalg.inv,
    "matrix_norm": lambda x: np.linalg.matrix_norm(x, ord=2),
    "matrix_power": lambda x: np.linalg.matrix_power(x, -3),
    "norm": lambda x: np.linalg.norm(x, 2, axis=(-2, -1)),
    "pinv": np.linalg.pinv,
    "qr": np.linalg.qr,
    "qr_r": lambda x: np.linalg.qr(x, mode="r"),
    "slogdet": np.linalg.slogdet,
    "solve": lambda x: np.linalg.solve(x, x[..., :2]),
    "svd": np.linalg.svd,
    "svd_reduced": lambda x: np.linalg.svd(x, full_matrices=False),
    "svdvals": np.linalg.svdvals,
}


@pytest.mark.parametrize("name", sorted(SOLVED))
def test_a_function_of_matrices_equals_numpy(lab, name):
    """Of one and of several, in all layouts; of vectors the error is NumPy's."""
    function = SOLVED[name]
    for shape in ((3, 3), (2, 3, 3), (2, 4), (3,)):
        for kind in "fdFD":
            host = np.random.default_rng(3).standard_normal((*shape, 2)).astype(kind)
            host += np.eye(*shape[-2:], dtype=kind)[..., None] if len(shape) > 1 else 0
            for layout in ("c", "f", "strided", "permuted"):
                view = LAYOUTS[layout]
                pair = view(host), view(lab.up(host))
                lab.agree(function, pair, what=(shape, kind, layout))


def test_a_matrix_that_numpy_raises_for_is_nan(lab):
    """No kernel can raise; the others of a stack are as ever, and so is the stream."""
    good, singular = np.array([[2.0, 1.0], [1.0, 3.0]]), np.ones((2, 2))
    unsound = np.full((2, 2), np.nan)
    for bad, function in (
        (singular, np.linalg.inv),
        (singular, lambda x: np.linalg.solve(x, x[..., :1])),
        (singular, lambda x: np.linalg.matrix_power(x, -2)),
        (-good, np.linalg.cholesky),
        (unsound, lambda x: np.linalg.svd(x).S),
    ):
        with pytest.raises(np.linalg.LinAlgError):
            function(bad)
        found = np.asarray(function(lab.up(np.array([good, bad, good]))))
        assert np.isnan(found[1]).all()
        for place in (0, 2):
            np.testing.assert_array_equal(found[place], function(good))
        assert np.isnan(np.asarray(function(lab.up(bad)))).all()
    with pytest.raises(np.linalg.LinAlgError, match="square"):
        np.linalg.inv(lab.up(np.ones((2, 3))))


READ = {
    "average": lambda x: np.average(x, axis=0, weights=[1, 2, 3, 4], returned=True),
    "bincount": lambda x: np.bincount(np.abs(x).astype(np.int64).ravel()),
    "compress": lambda x: np.compress([True, False, True], x, axis=0),
    "delete": lambda x: np.delete(x.ravel(), (np.abs(x).ravel() > 1).astype(int)),
    "eig": np.linalg.eig,
    "extract": lambda x: np.extract(x > 0, x),
    "histogram": lambda x: np.histogram(x, bins=4),
    "intersect1d": lambda x: np.intersect1d(x, x[1:]),
    "lstsq": lambda x: np.linalg.lstsq(x, x[:, 0]),
    "matrix_rank": np.linalg.matrix_rank,
    "nanargmax": lambda x: np.nanargmax(x, axis=0),
    "polyfit": lambda x: np.polyfit(x[0], x[1], 1),
    "repeat": lambda x: np.repeat(x.ravel(), np.abs(x).astype(np.int64).ravel()),
    "roots": lambda x: np.roots(x[0]),
    "trim_zeros": lambda x: np.trim_zeros(np.where(x > 0, x, 0).ravel()),
    "unique": lambda x: np.unique(x, return_counts=True),
    "unique_counts": np.unique_counts,
}


@pytest.mark.parametrize("name", sorted(READ))
def test_what_hangs_on_values_is_computed_on_the_host(lab, name):
    """A shape or a dtype that hangs on values is NumPy's, and no session has it."""
    host = np.random.default_rng(4).standard_normal((4, 4))
    x = lab.up(host)
    lab.agree(READ[name], (host, x))
    with (
        entered(Session(tolerant=False)),
        pytest.raises(CaptureError, match="value on the host"),
    ):
        READ[name](x)


def test_functions_that_write_into_an_argument(lab):
    """They write what NumPy writes, into views as well, and return nothing."""
    for write in (
        lambda x: np.fill_diagonal(x, [1, 2, 3], wrap=True),
        lambda x: np.place(x, x > 0, [5.0, 6.0]),
        lambda x: np.put(x, [0, -1], [7, 8]),
        lambda x: x.put([3, 1], 9, mode="wrap"),
        lambda x: np.putmask(x, x < 0, x * 2),
        lambda x: np.nan_to_num(x, copy=False, nan=4.0),
        lambda x: x.sort(axis=0),
        lambda x: x.partition([1, 2]),
    ):
        for layout in ("c", "f", "strided", "unaligned"):
            host, x = lab.pair("d", (4, 4), layout)
            write(host)
            write(x)
            lab.same(x, host)
        with pytest.raises(ValueError, match="read-only"):
            write(np.broadcast_to(x, (2, *x.shape))[0])
    with pytest.raises(TypeError, match=r"numpy\.putmask cannot write device data"):
        np.putmask(host, x > 0, x)


def test_what_is_asked_of_all_elements(lab):
    """Membership and equality are read on the host."""
    host, x = lab.pair("d", (3, 4))
    assert 1.5 not in x
    assert host[0, 1] in x
    assert x.tobytes() == host.tobytes()
    assert np.array_equiv(x[:1], np.broadcast_to(x[0], (2, 4))) == np.array_equiv(
        host[:1], np.broadcast_to(host[0], (2, 4))
    )


def test_unsupported_functions_are_named(lab):
    """Functions that do not exist here raise, naming themselves and a way out."""
    _, x = lab.pair()
    for name, call in {
        "apply_along_axis": lambda: np.apply_along_axis(sum, 0, x),
        "piecewise": lambda: np.piecewise(x, [x > 0], [1]),
        "linalg.tensorinv": lambda: np.linalg.tensorinv(x),
    }.items():
        with pytest.raises(TypeError, match=rf"numpy\.{name};.*asarray"):
            call()


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
