"""Functions of CuPy's arrays on a GPU: what the laws, on our own arrays, leave out."""

from __future__ import annotations

import gc
import itertools
import os
import random
import warnings

import numpy as np
import pytest

import sapwood as sw

pytestmark = pytest.mark.gpu

SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((7, 1, 3, 4), (2, 4, 5)),
    ((3, 0), (0, 5)),
    ((1, 4), (4, 1)),
    ((5, 1), (1, 6)),
]
VIEWS = {
    "as it is": lambda x: x,
    "column-major": lambda x: x.T.copy().T,
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "reversed": lambda x: x[..., ::-1],
}
DOUBLE = r"""
extern "C" __global__ void twice(const float* a, float* out, int n) {
  int i = threadIdx.x;
  if (i < n) out[i] = 2 * a[i];
}
"""


def _same(found, expected):
    assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()


@pytest.mark.parametrize("dtype", ["e", "f", "d", "F", "D", "i", "?"])
@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_products_are_numpys(rt, dtype, left, right):
    """Shapes and dtypes are NumPy's, values as near as the dtype allows."""
    rng, near = np.random.default_rng(1), 2e-2 if dtype == "e" else 1e-5
    a, b = (rng.integers(-4, 5, shape).astype(dtype) for shape in (left, right))
    for view in VIEWS.values():
        found = view(rt.array(a)) @ view(rt.array(b))
        expected = view(a) @ view(b)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(np.asarray(found), expected, rtol=near)


def test_products_are_recorded(rt):
    """A layer of a network, replayed, equals itself run eagerly, bit for bit."""
    rng = np.random.default_rng(2)
    w, b = (rt.array(rng.random(s, dtype=np.float32)) for s in ((64, 32), (32,)))
    layer = lambda x: np.maximum(x @ w + b, 0)  # noqa: E731
    f = rt.graph(layer)
    for _ in range(6):
        x = rt.array(rng.random((16, 64), dtype=np.float32))
        _same(f(x), layer(x))
    assert f.stats().replays >= 3


def test_arrays_of_cupys_own(rt, cp):
    """Leaves may be CuPy's; results are what they are without a runtime."""
    f = rt.graph(lambda x, y: (x - 1, x[1:], y))
    for i in range(8):
        x, y = cp.full(6, float(i)), rt.array(np.ones(2))
        less, part, same = f(x, y)
        assert type(less) is cp.ndarray
        assert same is y
        assert part.data.mem is x.data.mem
        del x
        assert less.get().tolist() == [i - 1.0] * 6
        assert part.get().tolist() == [float(i)] * 5


@pytest.mark.parametrize("role", ["read", "passed"])
def test_a_shape_that_is_assigned_is_seen(rt, cp, role):
    """The array is the same object, at the same address; each shape has a recording."""
    host = np.arange(16.0)
    weight, x = cp.array(host), cp.ones(1)
    if role == "read":
        f, args = rt.graph(lambda x: weight * 2 + x), (x,)
    else:
        f, args = rt.graph(lambda weight, x: weight * 2 + x), (weight, x)
    for shape in [(16,), (2, 8), (4, 4), (4, 4, 1)] * 2:
        weight.shape = shape
        for _ in range(12):
            found = cp.asnumpy(f(*args))
            assert found.shape == shape
            _same(found, host.reshape(shape) * 2 + 1)
    assert f.stats().recordings == 4


def test_arrays_that_others_export(rt, cp):
    """DLPack and ``__cuda_array_interface__`` come in by CuPy, or as a copy."""

    class Exported:
        def __init__(self, array):
            self.__cuda_array_interface__ = array.__cuda_array_interface__

    f, x = rt.graph(lambda x: x * 2), cp.arange(4.0)
    for _ in range(4):
        assert f(cp.from_dlpack(x)).get().tolist() == [0, 2, 4, 6]
        copied = rt.array(Exported(x))
        x += 1
        _same(copied, x.get() - 1)
        x -= 1


def test_all_of_what_came_by_dlpack_is_copied(rt, cp):
    """CuPy says of such memory that it is smaller than its arrays."""
    x = cp.arange(1200.0).reshape(30, 40)
    f = rt.graph(lambda y: cp.from_dlpack(y + 1))
    kept = [f(x + i) for i in range(8)]
    assert f.stats().replays >= 3
    for i, found in enumerate(kept):
        assert (found == x + i + 1).all()


def test_what_moves_is_copied(rt):
    """Into the range and back, for all that is known of its kernels."""
    f = rt.graph(lambda x, y: (x * 2 + y, (x * y).sum(0)))
    kept = []
    for i in range(10):
        x, y = rt.array(np.full((8, 8), float(i))), rt.array(np.ones((8, 8)))
        kept.append((x, y))
        a, b = f(x, y)
        _same(a, x * 2 + y)
        _same(b, (x * y).sum(0))
    assert f.stats().copied_bytes == 9 * 2 * (x.nbytes + y.nbytes)
    assert f.stats().replays >= 6


def test_a_users_kernel(rt, cp):
    """A `RawKernel` is recorded; what it may write is taken to be written."""
    kernel = cp.RawKernel(DOUBLE, "twice")

    def fn(x):
        out = np.empty_like(x)
        kernel((1,), (32,), (x, out, np.int32(x.size)))
        return out

    f = rt.graph(fn)
    for i in range(6):
        x = rt.array(np.full(10, i, np.float32))
        _same(f(x), np.full(10, 2 * i, np.float32))
        _same(x, np.full(10, i, np.float32))
    assert f.stats().replays >= 3


def test_random_numbers_are_numpys(rt):
    """Every word of NumPy's Philox is drawn, in its order, eagerly and replayed."""
    ours, numpys = rt.generator(3), np.random.Generator(np.random.Philox(3))
    draw = random.Random(1)
    for _ in range(60):
        size, dtype = draw.randrange(40), draw.choice([np.float32, np.float64])
        _same(ours.random(size, dtype), numpys.random(size, dtype))
    _same(ours.uniform(-2.0, 3.0, 9), numpys.uniform(-2.0, 3.0, 9))
    f, x = rt.graph(lambda x, rng: x * (rng.random(x.shape) > 0.5)), rt.array([1.0] * 9)
    for _ in range(6):
        _same(f(x, ours), np.ones(9) * (numpys.random(9) > 0.5))
    with pytest.raises(sw.MisuseError, match="uniform"):
        ours.standard_normal(3)


def test_random_numbers_of_the_module(rt, cp):
    """They are drawn live, from the state that there is by then."""

    def inside(radius):
        x, y = cp.random.rand(64), cp.random.normal(radius, 2.0, 64)
        order = cp.random.permutation(8)
        return (x * x + y * y < 1).mean(), order * cp.random.randint(1, 9, 8), x

    def drawn(f):
        cp.random.seed(5)
        for i in range(10):
            if i == 6:
                cp.random.seed(11)
            if i == 8:
                cp.random.set_random_state(cp.random.RandomState(3))
            yield [cp.asnumpy(each) for each in f(radius)]

    radius, f, state = cp.full(64, 0.5), rt.graph(inside), cp.random.get_random_state()
    try:
        for call in zip([*drawn(f)], [*drawn(inside)], strict=True):
            for found, expected in zip(*call, strict=True):
                _same(found, expected)
    finally:
        cp.random.set_random_state(state)
    assert f.stats().replays >= 6
    assert not f.stats().skipped


def test_a_seed_that_the_function_sets(rt, cp):
    """Each call begins there, as replays do."""

    def fn(seed):
        cp.random.seed(seed)
        return cp.random.rand(8), cp.random.permutation(8) * 2

    state, f = cp.random.get_random_state(), rt.graph(fn)
    try:
        for i in range(12):
            for found, expected in zip(f(i // 6), fn(i // 6), strict=True):
                _same(cp.asnumpy(found), cp.asnumpy(expected))
    finally:
        cp.random.set_random_state(state)
    assert f.stats().replays >= 6


def test_functions_that_code_has_names_for(rt, cp):
    """What no capture takes runs live, however it is called; and all is put back."""
    from cupy.linalg import eigh, solve
    from cupy.random import permutation, rand, seed

    codes = [each.__code__ for each in (eigh, solve, permutation, rand, seed)]

    def fn(x):
        seed(4)
        y = rand(3, 3) + cp.eye(3) * 4
        return solve(y, x), eigh(y + y.T)[0], permutation(5)

    f = rt.graph(fn)
    for i in range(9):
        x = cp.arange(3.0) + i
        for found, expected in zip(f(x), fn(x), strict=True):
            _same(cp.asnumpy(found), cp.asnumpy(expected))
    assert f.stats().replays >= 4
    assert not f.stats().skipped
    for each, code in zip((eigh, solve, permutation, rand, seed), codes, strict=True):
        assert each.__code__ is code


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_solvers_raise_as_the_function_lets_them(rt, cp):
    """In a context that it enters itself, by what is in the matrix."""
    import cupyx

    errors = []

    def fn(x):
        try:
            with cupyx.errstate(linalg="raise"):
                return cp.linalg.cholesky(x)
        except np.linalg.LinAlgError:
            errors.append(1)
            return x.trace()

    f = rt.graph(fn)
    for i in range(12):
        x = cp.eye(3) * (-1.0 if i % 5 == 4 else 2.0 + i)
        _same(cp.asnumpy(f(x)), cp.asnumpy(fn(x)))
    assert len(errors) == 4


def test_a_capture_that_ends_behind_what_was_read(rt, cp):
    """Parts have run by then: the call is run on as eagerly, and nothing twice."""
    from cupyx.scipy import interpolate

    x, calls = cp.linspace(0.0, 1.0, 12), []

    def fn(y, at):
        calls.append(float(y.sum()))
        return interpolate.CubicSpline(x, y)(at), at.cumsum()

    f, draw = rt.graph(fn), np.random.default_rng(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(5):
            y, at = cp.asarray(draw.random(12)), cp.asarray(draw.random(7))
            for found, expected in zip(f(y, at), fn(y, at), strict=True):
                _same(cp.asnumpy(found), cp.asnumpy(expected))
    assert calls[::2] == calls[1::2]


def test_what_cupy_cannot_capture_is_refused(rt, cp):
    """By the line, with the remedy; the process goes on."""
    x = rt.array(np.array([1.0, 2.0, 3.0, 5.0]))
    programs = {
        "host": lambda x: x * float(x.sum()),
        "on the host": lambda x: x[x > 0],
        "cuRAND": lambda x: x + cp.random.random(4),
        "cuSOLVER": lambda x: cp.linalg.solve(x.reshape(2, 2), x[:2]),
    }
    other = rt.graph(lambda x: x + 2, fullgraph=True)
    for word, program in programs.items():
        f = rt.graph(program, fullgraph=True)
        with pytest.raises(sw.CaptureError, match=word) as caught:
            for _ in range(3):
                f(x)
        assert caught.value.where.startswith(__file__)
        assert caught.value.remedy
        for _ in range(4):
            _same(other(x), x + 2)


def test_an_array_that_nothing_names_is_refused(rt):
    """An address in an op that no name leads to is found, whoever launched it."""
    secret = itertools.repeat(rt.array(np.ones(4)))
    f, x = rt.graph(lambda x: x * next(secret), fullgraph=True), rt.array(np.ones(4))
    with pytest.raises(sw.CaptureError, match="neither an argument nor reachable"):
        for _ in range(3):
            f(x)


def test_streams_of_cupys_own(rt, cp):
    """A replay runs on the stream that is CuPy's current one, whoever made it."""
    f, x = rt.graph(lambda x: x + 1), rt.array(np.zeros(1 << 16))
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(6):
            y = f(x)
            z = y * 2
            x += 1
            del y
        stream.synchronize()
    _same(z, np.full(1 << 16, 12.0))
    ours = rt.stream()
    with ours:
        assert cp.cuda.get_current_stream().ptr == ours.theirs.ptr
    assert cp.cuda.Stream.from_external(ours).ptr == ours.theirs.ptr


def _held(rt, cp):
    """Pages of recordings, CuPy's bytes, and the device's, if they are ours alone."""
    gc.collect()
    cp.cuda.Device().synchronize()
    cp.get_default_memory_pool().free_all_blocks()
    stats, (free, total) = rt.memory_stats(), cp.cuda.Device().mem_info
    shared = "PYTEST_XDIST_WORKER" in os.environ
    return {
        "pages": stats["pages.mapped"],
        "heap": stats["heap.pages"],
        "CuPy's": cp.get_default_memory_pool().total_bytes(),
        "device": 0 if shared else total - free,
    }


def test_device_memory_does_not_grow(rt, cp):
    """10,000 replays, of which some results are kept for a while at random."""
    f, g = rt.graph(lambda x: (x + 1, x * 2)), rt.graph(lambda x, y: x - y)
    x, kept, draw, marks = rt.array(np.ones(1 << 10)), [], random.Random(7), []
    for i in range(10_000):
        a, b = f(x)
        kept.append((g(a, b), a))
        del kept[: draw.choice([0, 0, 1, 1, 1, len(kept) if i % 97 == 0 else 1])]
        del kept[:-20]
        if i in (1_000, 9_999):
            for less, more in kept:
                _same(less, np.zeros(1 << 10))
                _same(more, np.full(1 << 10, 2.0))
            kept, a, b = [], None, None
            marks.append(_held(rt, cp))
    before, after = marks
    assert all(after[name] <= before[name] for name in before), marks
    assert rt.stats().recordings <= 16


def test_files_hold_no_kernels_of_cupys(rt, tmp_path):
    """They are code that this library never saw: saving is refused by name."""
    f, x = rt.graph(lambda x: x + 1), rt.array(np.ones(3))
    for _ in range(4):
        f(x)
    with pytest.raises(sw.StoreError, match="framework"):
        sw.save(f, tmp_path / "f.sapwood")


def test_memory_of_cupys_pool_is_asked_for(rt, cp):
    """Where memory is short, what CuPy's pool keeps is given back first."""
    kept = cp.empty(64 << 20, np.uint8)
    del kept
    gc.collect()
    assert cp.get_default_memory_pool().total_bytes() >= 64 << 20
    assert rt._device.framework.trim() >= 64 << 20
    assert cp.get_default_memory_pool().free_bytes() == 0
