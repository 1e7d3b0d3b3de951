"""Results equal eager's bit for bit, for every kind of argument."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
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


@dataclass
class Model:
    weight: Any
    bias: Any
    act: str
    scale: float = 0.5


@dataclass(frozen=True)
class Frozen:
    inner: Pair
    rest: dict


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


def test_nothing_but_empty_tensors_is_computed(agrees):
    """A function none of whose operations has any work to do is still right."""
    agrees(lambda x: (x * 2, x[:0]), lambda w: (w.values(0),))


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


def test_overlapping_leaves_are_written(agrees):
    """``f(x, x[1:])`` with writes through both sees one memory."""

    def f(x, y):
        x *= 2
        y += 1
        x[0] = y[0]
        return x + 0, y.sum()

    def make(w):
        x = w.values(6)
        return x, x[1:]

    agrees(f, make)


def test_overlapping_leaves_in_many_ways(agrees):
    """Interleaved, turned and nested views of one storage keep their overlap."""

    def f(x, odd, turned, part):
        odd += 10
        part *= 3
        return turned - x.view(2, 4).t(), x.sum(), odd + 0

    def make(w):
        x = w.values(8)
        return x, x[1::2], x.view(2, 4).t(), x.view(2, 4)[1, 1:3]

    agrees(f, make)


def add_in_place(x, y):
    x += 1
    return x + y


@pytest.mark.parametrize("first", ["same", "other"])
def test_the_same_tensor_twice_then_another(alike, first):
    """``f(x, x)`` and ``f(x, z)`` are different calls, whichever was recorded."""

    def program(w):
        f = w.graph(add_in_place)
        for same in (first == "same", first != "same") * 2:
            for _ in range(4):
                x, z = w.values(4), w.values(4)
                yield f(x, x if same else z), x, z

    assert alike(program).count("replays") >= 4


@pytest.mark.parametrize("fresh", [False, True])
def test_how_much_leaves_overlap_is_noticed(alike, fresh):
    """Views of the same shapes that overlap by more or less never mix."""

    def program(w):
        f, x = w.graph(lambda a, b: add_in_place(a, b)), w.values(12)
        for shift in (0, 1, 2, 5, 1, 0, 7, 2, 0, 1) * 3:
            x = w.values(12) if fresh else x
            yield f(x[0:5], x[shift : shift + 5]), x

    assert alike(program).count("replays") >= 6


# Plain values.

SCALARS = (
    *(1, True, 1.0, 0, False, 0.0, -0.0, float("nan"), float("inf")),
    *(300, -3, 1 + 0j, complex(0.0, -0.0)),
)


def test_plain_numbers_are_compared_by_type_and_bits(alike):
    """1, True and 1.0 differ, +0 and -0 differ; NaN is one value."""

    def program(w):
        f = w.graph(lambda x, s: (x * s, x + s, s, [s]))
        x = w.values(4, dtype=torch.int16)
        for _ in range(4):
            for scalar in SCALARS:
                yield f(x, scalar)

    world = alike(program)
    assert world.count("recordings") == len(SCALARS)
    assert world.count("warmups") == len(SCALARS)


def test_the_sign_of_zero_matters(alike):
    """``copysign`` by a recorded 0.0 must not serve -0.0, nor the other way."""

    def program(w):
        f, x = w.graph(lambda x, s: torch.copysign(x, s)), w.values(3)
        for scalar in (0.0, -0.0) * 4:
            yield f(x, scalar)

    assert alike(program).count("recordings") == 2


def test_every_nan_is_the_same_constant(alike):
    """NaN equals itself, so that it does not record for ever."""

    def program(w):
        f, x = w.graph(lambda x, s: torch.where(x > 0, x, s)), w.values(4)
        for _ in range(6):
            yield f(x, float("nan"))

    assert alike(program).count("recordings") == 1


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


def test_nested_containers(alike):
    """Nests of tuples, lists and dicts come in and go out as they are."""

    def f(state, *rest, flag, **more):
        x, (y, [z]) = state["x"], state["yz"]
        out = OrderedDict(b=x + y, a=[y * z, (x, None, "text", 3)])
        return {"out": out, 1: rest[0] - z, "more": sorted(more), "flag": flag}, []

    def program(w):
        g, state = w.graph(f), None
        for i in range(9):
            if state is None or i > 4:
                state = {"x": w.values(3), "yz": (w.values(3), [w.values(3)])}
            yield g(state, state["x"], flag=True, last=(), also={}), state

    assert alike(program).count("replays") >= 4


def test_dataclasses_and_named_tuples(agrees):
    """Dataclasses, frozen ones too, and named tuples are taken apart and rebuilt."""

    def f(model, pair, frozen):
        y = pair.left @ model.weight + model.bias
        if model.act == "relu":
            y = y.relu() * model.scale
        moved = Model(model.weight * 2, y, "tanh")
        return moved, Pair(y, [moved.bias]), Frozen(frozen.inner, {"y": y - 1})

    def make(w):
        model = Model(w.values(3, 2), w.values(2), "relu")
        pair = Pair(w.values(4, 3), None)
        return model, pair, Frozen(Pair(w.values(1), 2), {})

    agrees(f, make)


def test_the_shape_of_a_nest_is_part_of_the_signature(alike):
    """The same leaves in another nest are another call."""

    def f(nest):
        if isinstance(nest, dict):
            return {key: value * 2 for key, value in nest.items()}
        return [len(nest), *(part + 1 for part in nest)]

    def program(w):
        g = w.graph(f)
        x, y = w.values(3), w.values(3)
        for _ in range(4):
            for nest in ((x, y), [x, y], {"a": x, "b": y}, {"b": x, "a": y}, [x]):
                yield g(nest)
            yield g(Pair(x, y))

    assert alike(program).count("recordings") == 6


def test_keywords_and_positions_mean_the_same(alike):
    """However arguments are passed, they reach their parameters."""

    def f(a, b=2, *, c=None):
        return a - b if c is None else (a - b) * c

    def program(w):
        g, x, y = w.graph(f), w.values(3), w.values(3)
        for _ in range(4):
            yield g(x, y), g(y, x), g(b=y, a=x), g(a=y, b=x), g(x), g(y, c=x), g(x, 2)
            yield g(x, c=None), g(c=y, b=x, a=y), g(b=3, a=x)

    assert alike(program).count("replays") >= 10


def test_a_call_with_no_tensors_at_all(alike):
    """A function of constants and of what it closes over can be recorded."""

    def program(w):
        x = w.values(3)
        f = w.graph(lambda n=1: x * n)
        for _ in range(4):
            yield f(), f(2), f(n=2)

    assert alike(program).count("recordings") >= 2


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
