"""Results equal eager's bit for bit, for every kind of argument."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

STORED = ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2")


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize("dtype", STORED)
def test_dtypes_that_are_only_stored(agrees, dtype):
    """Those that hardly any operation knows are passed in, copied and returned."""
    kind = getattr(torch, dtype)

    def f(x):
        return x.clone(), x[1:], x.view(torch.uint8).clone(), x.reshape(4, 3), x

    agrees(f, lambda w: ((w.values(3, 4).abs() * 40).to(kind),))


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
