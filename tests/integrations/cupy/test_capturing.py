"""What CuPy cannot do in a capture, recorded all the same: with eager bits."""

from __future__ import annotations

import itertools
import re
import threading
import warnings

import numpy as np
import pytest

import sapwood as sw

cp = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu

_seeds = itertools.count()

SHAPES = [
    *(((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,))),
    *(((64, 96), (96, 80)), ((1, 4), (4, 1)), ((5, 1), (1, 6)), ((3, 0), (0, 5))),
    *(((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((7, 1, 3, 4), (2, 4, 5))),
    *(((1, 2, 3), (3, 4)), ((3, 2, 4), (1, 3, 4, 5)), ((1, 1, 2, 3), (1, 3, 4))),
    *(((2, 3, 4), (4,)), ((4,), (2, 4, 5)), ((2, 3, 4), (5, 4, 6))),
]
VIEWS = {
    "as it is": lambda x: x,
    "column-major": lambda x: x.T.copy().T,
    "every second": lambda x: x.repeat(2, axis=-1)[..., ::2],
    "reversed": lambda x: x[..., ::-1],
}
PRODUCTS = {
    "@": lambda a, b: a @ b,
    "dot": lambda a, b: a.dot(b),
    "matmul": lambda a, b: cp.matmul(a, b),
    "numpy": lambda a, b: np.matmul(a, b),
}
JOINED = {
    "tensordot": (
        lambda a, b: cp.tensordot(a, b, axes=([1, 2], [0, 1])),
        ((3, 4, 5), (4, 5, 6)),
    ),
    "einsum": (
        lambda a, b: cp.einsum("bij,bjk->bik", a, b),
        ((2, 3, 4), (2, 4, 5)),
    ),
    "traced": (lambda a, b: cp.einsum("ij,jk->ik", a, b), ((3, 4), (4, 5))),
    "inner": (lambda a, b: cp.inner(a, b), ((3, 4), (5, 4))),
    "outer": (lambda a, b: cp.outer(a, b), ((3,), (5,))),
    "vdot": (lambda a, b: cp.vdot(a, b), ((30,), (30,))),
    "kron": (lambda a, b: cp.kron(a, b), ((2, 3), (3, 2))),
    "in place": (lambda a, b: cp.matmul(a, b, out=a), ((4, 4), (4, 4))),
    "out": (
        lambda a, b: cp.dot(a, b, out=cp.empty((3, 5), a.dtype)),
        ((3, 4), (4, 5)),
    ),
    "out, cast": (
        lambda a, b: cp.matmul(a, b, out=cp.empty((3, 5), "D")),
        ((3, 4), (4, 5)),
    ),
}


@pytest.fixture
def recorded(rt):
    """Return what holds a recorded function against itself, over calls of all kinds."""

    def shown(nest):
        if isinstance(nest, (list, tuple)):
            return [shown(each) for each in nest]
        return nest.dtype, nest.shape, nest.strides, cp.asnumpy(nest).tobytes()

    def recorded(fn, make, *, calls=8, always=True):
        f, kept = rt.graph(fn), []
        for _ in range(calls):
            args = make()
            mine, theirs = ([x.copy() for x in args] for _ in range(2))
            kept.append((f(*mine), mine, fn(*theirs), theirs))
        for mine, given, theirs, taken in kept:
            assert shown((mine, given)) == shown((theirs, taken))
        assert f.stats().replays >= 2 or not always

    return recorded


def values(*shapes, dtype="f"):
    """Return arrays of numbers that rounding shows."""
    rng = np.random.default_rng(next(_seeds))
    found = [rng.standard_normal(shape) for shape in shapes]
    if np.dtype(dtype).kind == "c":
        found = [x + 1j * x[..., ::-1] for x in found]
    return [
        cp.asarray((x * 9 if np.dtype(dtype).kind in "bi" else x).astype(dtype))
        for x in found
    ]


@pytest.mark.parametrize("dtype", ["e", "f", "d", "F", "D", "i", "?"])
@pytest.mark.parametrize("how", PRODUCTS)
def test_products(recorded, how, dtype):
    """Of plain arrays, of all shapes and dtypes: by the routine that CuPy calls."""
    for shapes in SHAPES:
        if how == "dot" and max(map(len, shapes)) > 2:
            shapes = ((2, 3, 4), (5, 4, 6))  # noqa: PLW2901 - the sum of all pairs
        if how != "dot" and shapes == ((2, 3, 4), (5, 4, 6)):
            continue
        # Of outer products of doubles cuBLAS may have numbers in memory of its own.
        outer = dtype == "d" and shapes[0][-1] == 1
        with warnings.catch_warnings():
            if outer:
                warnings.simplefilter("ignore", sw.GraphSkipWarning)
            recorded(
                PRODUCTS[how],
                lambda shapes=shapes: values(*shapes, dtype=dtype),
                always=not outer,
            )


@pytest.mark.parametrize("view", VIEWS)
def test_products_of_views(recorded, view):
    """However operands lie in memory."""
    look = VIEWS[view]
    for shapes in (((6, 8), (8, 10)), ((2, 6, 8), (2, 8, 10))):
        recorded(lambda a, b: (look(a) @ b, a @ look(b)), lambda s=shapes: values(*s))


@pytest.mark.parametrize("how", JOINED)
def test_other_products(recorded, how):
    """What CuPy makes of the same routines."""
    fn, shapes = JOINED[how]
    recorded(fn, lambda: values(*shapes))


def test_mixed_dtypes(recorded):
    """Operands are converted as CuPy does."""

    def make():
        return [values((4, 5), dtype="f")[0], values((5, 6), dtype="d")[0]]

    recorded(lambda a, b: (a @ b, b.T @ a.T), make)


def test_a_chosen_precision(recorded):
    """TF32 is used where CuPy is set to it."""
    linalg = pytest.importorskip("cupy._core._routines_linalg")
    before = linalg.get_compute_type(np.float32)
    linalg.set_compute_type(np.float32, linalg.COMPUTE_TYPE_TF32)
    try:
        recorded(lambda a, b: a @ b, lambda: values((64, 64), (64, 64)))
    finally:
        linalg.set_compute_type(np.float32, before)


def test_products_that_do_not_fit(rt):
    """Raise what they raise eagerly."""
    f = rt.graph(lambda a, b: a @ b)
    (x,) = values((3, 4))
    for other in ((3, 4), (5,), (2, 3, 4), (4, 5)):
        (y,) = values(other)
        for _ in range(3):
            if other == (4, 5):
                assert f(x, y).shape == (3, 5)
            else:
                with pytest.raises(ValueError, match=r"shape|dimension|aligned|Axis"):
                    f(x, y)


CONSTANTS = {
    "a list": lambda x: x + cp.array([1.0, 2.0, 3.0, 4.0], np.float32),
    "nested": lambda x: x[:2] + cp.asarray([[1, 2, 3, 4], [5, 6, 7, 8]]),
    "columns": lambda x: x[:, [0, 2]],
    "rows": lambda x: x[[1, 0]],
    "pairs": lambda x: x[[0, 1, 2], [1, 2, 3]],
    "nothing": lambda x: x[[]],
    "a mask": lambda x: x[[True, False, True]],
    "a mask of all": lambda x: x[np.eye(3, 4, dtype=bool).tolist()],
    "masks and slices": lambda x: x[1:, None, [True, False, False, True]],
    "take": lambda x: x.take([1, 2], axis=1),
    "a tuple": lambda x: cp.take(x, (0, 2), axis=0),
    "column-major": lambda x: (
        cp.asfortranarray(x) + cp.array([[1.0] * 4] * 3, order="F")
    ),
    "large": lambda x: x.sum() + cp.array([0.5] * 5000),
    "numbers": lambda x: x * cp.array(2.5) + cp.asarray(np.float32(1)),
    "many": lambda x: cp.concatenate([x + i for i in range(20)], axis=1),
    "stacked": lambda x: cp.stack([x * i for i in range(9)]),
    "joined dtypes": lambda x: cp.concatenate(
        [x.astype(k) for k in "bhifdBHIbhif"], axis=0
    ),
}


@pytest.mark.parametrize("how", CONSTANTS)
def test_constants(recorded, how):
    """What a function makes of plain numbers is a part of its recording."""
    recorded(CONSTANTS[how], lambda: values((3, 4)))


def test_constants_are_written(recorded):
    """Into parts of arrays, by lists and by numbers."""

    def fn(x):
        x[:, [0, 2]] = 1.5
        x[[1]] = np.float32(4)
        x.put([0, 5], [9, 8])
        x[2, 1:3] = cp.array([7, 6])
        return x * 2

    recorded(fn, lambda: values((3, 4)))


@pytest.mark.parametrize("dtype", ["?", "i", "B", "e", "f", "d", "F"])
@pytest.mark.parametrize("value", [0, 1.75, True, np.float32(3), "an array"], ids=repr)
def test_values_are_written_by_masks(recorded, dtype, value):
    """Of some axes or all, none or all of them meant, into parts of arrays, too."""
    value = cp.asarray(2.5) if value == "an array" else value

    def fn(x):
        mask, x = x > 0.5, x.astype(dtype)
        x[mask] = value
        x[1:, ::2][mask[1:, ::2]] = value
        x[mask.any(axis=1)] = value
        x[mask & ~mask] = 7
        return x * 2, x[..., None]

    recorded(fn, lambda: values((5, 4)))


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_other_host_data_is_a_reason(rt):
    """What is computed on the host is no constant."""
    rng = np.random.default_rng(3)
    f, (x,) = rt.graph(lambda x: x + cp.asarray(rng.random(4))), values((3, 4))
    seen = [cp.asnumpy(f(x)).tobytes() for _ in range(6)]
    assert len({*seen}) == 6
    assert f.stats().replays == 0
    assert re.search("host data|rng", f.explain())


@pytest.mark.parametrize("kind", ["XORWOW", "MRG32k3a", "Philox4x3210"])
def test_generators_go_on(rt, kind):
    """Numbers are those of eager calls, in their order."""
    mine, theirs = (
        cp.random.Generator(getattr(cp.random, kind)(7, size=4096)) for _ in range(2)
    )

    def draws(rng, x):
        return x + rng.random((3, 4)), rng.standard_normal((3, 4))

    f, (x,) = rt.graph(lambda x: draws(mine, x)), values((3, 4))
    kept = [(f(x), draws(theirs, x)) for _ in range(9)]
    for found, expected in kept:
        for one, other in zip(found, expected, strict=True):
            assert cp.asnumpy(one).tobytes() == cp.asnumpy(other).tobytes()
    assert f.stats().replays >= 3


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_who_asks_is_skipped_by_name(rt):
    """Work that is other in a capture is nobody's but the capture's."""

    def fn(x):
        captured = cp.cuda.get_current_stream().is_capturing()
        return x + 1 if captured else x * 2

    f, (x,) = rt.graph(fn), values((3, 4))
    for _ in range(5):
        assert cp.asnumpy(f(x)).tobytes() == cp.asnumpy(x * 2).tobytes()
    assert "asks whether a capture is on" in f.explain()


def test_cupy_is_as_it_was(rt):
    """Beside a capture, and behind it, CuPy's functions do what they do."""
    plain = cp.ndarray.__matmul__, cp._core.array, cp.matmul._ops_register._default_func
    (x,) = values((16, 16))
    expected, wrong, done = cp.asnumpy(x @ x).tobytes(), [], threading.Event()

    def beside():
        with cp.cuda.Stream():
            while not done.is_set():
                found = cp.asnumpy(x @ x).tobytes(), cp.array([1, 2]).tolist()
                if found != (expected, [1, 2]):
                    wrong.append(found)

    thread = threading.Thread(target=beside)
    thread.start()
    try:
        for i in range(6):
            f = rt.graph(lambda x, i=i: x @ x + cp.array([i] * 16, np.float32))
            for _ in range(4):
                f(x)
    finally:
        done.set()
        thread.join()
    assert not wrong
    now = cp.ndarray.__matmul__, cp._core.array, cp.matmul._ops_register._default_func
    assert now == plain


def test_the_first_program():
    """As README has it."""
    with sw.Runtime(arrays="cupy") as rt:

        @rt.graph
        def step(x, w):
            return cp.tanh(x @ w) + x

        x, w = cp.ones((64, 64), cp.float32), cp.eye(64, dtype=cp.float32)
        y = x
        for _ in range(12):
            x, y = step(x, w), cp.tanh(y @ w) + y
            assert cp.asnumpy(x).tobytes() == cp.asnumpy(y).tobytes()
        assert step.stats().replays >= 3
