"""Results equal eager's bit for bit, for every kind of argument."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8")
STORED = ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2")


class Pair(NamedTuple):
    left: Any
    right: Any


def every_way(x):
    """Use a tensor in ways that every dtype and shape has."""
    chosen = torch.where(x != 0, x, x)
    return x.clone(), torch.eq(x, x), chosen, x.sum(), x.to(torch.complex64)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_dtypes(agrees, dtype):
    """Tensors of every common dtype give what they give eagerly."""
    kind = getattr(torch, dtype)

    def f(x, y):
        return *every_way(x), x + y, x * y, x.t().sum(0), x.to(torch.complex128)

    agrees(f, lambda w: (w.values(3, 4, dtype=kind), w.values(3, 4, dtype=kind)))


@pytest.mark.parametrize("dtype", STORED)
def test_dtypes_that_are_only_stored(agrees, dtype):
    """Those that hardly any operation knows are passed in, copied and returned."""
    kind = getattr(torch, dtype)

    def f(x):
        return x.clone(), x[1:], x.view(torch.uint8).clone(), x.reshape(4, 3), x

    agrees(f, lambda w: ((w.values(3, 4).abs() * 40).to(kind),))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (2, 0, 3)])
def test_empty_tensors(agrees, shape):
    """Tensors without elements are arguments and results like others."""

    def f(x, y):
        return *every_way(x), x + 1, x.sum(0), torch.cat([x, y]), x[:0], y

    agrees(f, lambda w: (w.values(*shape), w.values(*shape)))


def test_tensors_of_no_dimensions(agrees):
    """A 0-d tensor is read anew by every call, not baked in."""

    def f(x, y):
        return *every_way(x), -x, x + y, y * x, y.sum() * x

    agrees(f, lambda w: (w.values(), w.values(5)))


LAYOUTS = {
    "strided": lambda x: x[::2, 1::2],
    "column": lambda x: x[:, 2],
    "single": lambda x: x[2:3, 3:4],
    "swapped": lambda x: x.reshape(2, 3, 4).transpose(0, 2),
    "view": lambda x: x[1:4, 2:],
    "broadcast row": lambda x: x[1].expand(5, 4),
    "broadcast column": lambda x: x[:, 1:2].expand(6, 5),
    "broadcast all": lambda x: x[0, 0].expand(3, 3),
    "new axis": lambda x: x[:, None, 1],
    "other dtype": lambda x: x.view(torch.int16),
    "real part": lambda x: torch.view_as_complex(x.view(6, 2, 2)).real,
    "imaginary part": lambda x: torch.view_as_complex(x.view(6, 2, 2)).conj().imag,
    "conjugate": lambda x: torch.view_as_complex(x.view(6, 2, 2)).conj(),
    "channels last": lambda x: x.reshape(1, 2, 3, 4).to(
        memory_format=torch.channels_last
    ),
    "windows": lambda x: x.reshape(-1).unfold(0, 5, 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(agrees, layout):
    """Views of every layout are seen as they are, whether they are copied or not."""

    def f(x, y):
        return x.sum(0), x + 1, x.clone(), x.flip(0), x.reshape(-1), x * y, x

    agrees(f, lambda w: (LAYOUTS[layout](w.values(6, 4)), w.values()))


@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16", "complex128"])
@pytest.mark.parametrize("offset", [1, 3])
def test_unaligned_views_are_written(agrees, dtype, offset):
    """A tensor may begin at any of its elements."""
    kind = getattr(torch, dtype)

    def f(x, y):
        x += y
        return x + 1, x.sum(), x * y

    def make(w):
        data = w.values(40, dtype=kind)
        return data[offset : offset + 33], w.values(33, dtype=kind)

    agrees(f, make)


# Arguments that share memory.


# Plain values.


def test_none_strings_and_dtypes_choose(alike):
    """Each value of them has its own recording."""

    def f(x, mode=None, dim=None, dtype=None):
        y = x.relu() if mode == "relu" else x * 2
        y = y.sum() if dim is None else y.sum(dim)
        return y.to(dtype or torch.float32), mode, dim

    def program(w):
        g, x = w.graph(f), w.values(3, 4)
        for _ in range(4):
            for mode in ("relu", "RELU", "", None):
                for dim in (None, (0, 1)):
                    yield g(x, mode, dim)
            yield g(x, dtype=torch.float64), g(x, dtype=torch.float16)

    assert alike(program).count("recordings") == 10


# Nests.


def test_the_pieces_of_one_call_differ_from_those_of_another(alike):
    """Calls that differ in shape, dtype, strides or class never share a recording."""

    def program(w):
        f, base = w.graph(lambda x: (x * 2, x.sum(0), x[0])), w.values(4, 4)
        looks = (base, base.t(), base[:2], base[:, :2], base.view(2, 8), base[0])
        others = (base.half(), base.int(), torch.nn.Parameter(base))
        with torch.no_grad():
            for _ in range(4):
                yield [f(x) for x in looks], [f(x) for x in others]

    assert alike(program).count("recordings") >= 9


@pytest.mark.parametrize("calls", [0, 1, 4])
def test_a_host_array_is_refused(rt, same, calls):
    """One of NumPy's or on the CPU is a `TypeError`, at any depth and at any time."""
    numpy = pytest.importorskip("numpy")
    f = rt.graph(lambda x, more=None: (x + 1, more), fullgraph=True)
    x = torch.ones(3, device="cuda")
    for _ in range(calls):
        f(x)
    before = f.stats()
    for leaf, remedy in (
        (numpy.ones(3), "rt.array"),
        (numpy.ones((2, 0)), "rt.array"),
        (torch.ones(3), "Move it"),
        (torch.ones(()), "x.item"),
    ):
        for args in ((leaf,), (x, leaf), (x, {"a": [leaf]}), (x, Pair(x, leaf))):
            with pytest.raises(TypeError, match=remedy):
                f(*args)
    assert f.stats() == before
    same(f(x)[0], x + 1)
