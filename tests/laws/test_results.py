"""Law 1: results equal eager, and plain NumPy, bit for bit, for every kind of leaf."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import sapwood as sw

INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8")
DTYPES = (*INTEGERS, "float16", "float32", "float64", "complex64", "complex128")
UNSIGNED = ("uint16", "uint32", "uint64")
"""Those with which NumPy computes, and torch does not; `bfloat16` is torch's alone."""
only_numpy, only_torch = pytest.mark.only("numpy"), pytest.mark.only("torch")


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


@pytest.fixture
def every_way(framework):
    """Return what uses an array in ways that every dtype and shape has."""
    where, copied, cast = framework.xp.where, framework.copied, framework.cast
    wide = framework.xp.complex128

    def every_way(x):
        chosen = where(x != 0, x, x)
        return copied(x), x == x[...], chosen, x.sum(), cast(x, wide)

    return every_way


@pytest.fixture
def numpys(framework):
    """Return what gives the results of a function with NumPy, and none with torch."""
    return (lambda fn: fn) if framework.xp is np else lambda _: lambda *_: ()


@pytest.mark.every_framework
@pytest.mark.parametrize(
    "dtype",
    [
        *DTYPES,
        *(pytest.param(dtype, marks=only_numpy) for dtype in UNSIGNED),
        pytest.param("bfloat16", marks=only_torch),
    ],
)
def test_dtypes(same, every_way, numpys, dtype):
    """Arrays of every common dtype give what they give without recording."""
    more = numpys(lambda x, y: (np.maximum(x, y), x @ y.T))

    def f(x, y):
        return *every_way(x), x + y, x * y, x.T.sum(0), *more(x, y)

    def make(w):
        if dtype == "bfloat16":
            return tuple(w.values(3, 4).bfloat16() for _ in "xy")
        return w.values(3, 4, dtype=dtype), w.values(3, 4, dtype=dtype)

    same(f, make)


@pytest.mark.every_framework
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (2, 0, 3)])
def test_empty_arrays(same, framework, every_way, numpys, shape):
    """Arrays without elements are arguments and results like others."""
    more, joined = numpys(lambda x: (x.T.sum(0), x.T)), framework.xp.concatenate

    def f(x, y):
        return *every_way(x), x + 1, x.sum(0), joined([x, y]), x[:0], y, *more(x)

    same(f, lambda w: (w.values(*shape), w.values(*shape)))


@pytest.mark.minimal
@pytest.mark.every_framework
def test_nothing_but_empty_arrays_is_computed(same):
    """A function none of whose ops has any work to do is still right."""
    same(lambda x: (x * 2, x[:0]), lambda w: (w.values(0),))


@pytest.mark.every_framework
def test_arrays_of_no_dimensions(same, every_way):
    """A 0-d array is an array: read anew by every call, not baked in."""

    def f(x, y):
        return *every_way(x), -x, x + y, y * x, y.sum() * x

    same(f, lambda w: (w.values(), w.values(5)))


LAYOUTS = {
    "transposed": lambda x: x.T,
    "column-major": lambda x: x.T.copy().T,
    "strided": lambda x: x[::2, 1::2],
    "reversed": lambda x: x[::-1, ::-1],
    "column": lambda x: x[:, 2],
    "row": lambda x: x[3],
    "single": lambda x: x[2:3, 3:4],
    "swapped": lambda x: x.reshape(2, 3, 4).swapaxes(0, 2),
    "view": lambda x: x[1:4, 2:],
    "broadcast row": lambda x: np.broadcast_to(x[1], (5, 4)),
    "broadcast column": lambda x: np.broadcast_to(x[:, 1:2], (6, 5)),
    "broadcast all": lambda x: np.broadcast_to(x[0, 0], (3, 3)),
    "one element": lambda x: x[1:2, 1],
    "new axis": lambda x: x[:, None, 1],
    "other dtype": lambda x: x.view(np.int64),
    "real part": lambda x: x.view(np.complex128).real,
}


def _layouts_of_torch(torch):
    """Return the layouts that torch has other names for, and those of its own."""
    of_pairs = torch.view_as_complex
    return {
        "column-major": lambda x: x.t().contiguous().t(),
        "broadcast row": lambda x: x[1].expand(5, 4),
        "broadcast column": lambda x: x[:, 1:2].expand(6, 5),
        "broadcast all": lambda x: x[0, 0].expand(3, 3),
        "other dtype": lambda x: x.view(torch.int16),
        "real part": lambda x: of_pairs(x.view(6, 2, 2)).real,
        "imaginary part": lambda x: of_pairs(x.view(6, 2, 2)).conj().imag,
        "conjugate": lambda x: of_pairs(x.view(6, 2, 2)).conj(),
        "channels last": lambda x: x.reshape(1, 2, 3, 4).to(
            memory_format=torch.channels_last
        ),
        "windows": lambda x: x.reshape(-1).unfold(0, 5, 2),
    }


@pytest.fixture(
    params=[
        *(name for name in LAYOUTS if name != "reversed"),
        pytest.param("reversed", marks=only_numpy),
        *(
            pytest.param(name, marks=only_torch)
            for name in ("imaginary part", "conjugate", "channels last", "windows")
        ),
    ]
)
def layout(request, framework):
    """Return what gives an array one kind of layout."""
    own = _layouts_of_torch(framework.torch) if hasattr(framework, "torch") else {}
    return own.get(request.param) or LAYOUTS[request.param]


@pytest.mark.every_framework
def test_layouts(same, framework, numpys, layout):
    """Placeholders keep strides: views of every layout are seen as they are."""
    copied, turned = framework.copied, framework.turned
    more = numpys(lambda x: (x.T.sum(0), x.ravel()))

    def f(x, y):
        flat = x.reshape(-1)
        return x.sum(0), x + 1, copied(x), turned(x), flat, x * y, x, *more(x)

    same(f, lambda w: (layout(w.values(6, 4)), w.values()))


@pytest.mark.parametrize("dtype", ["float64", "int32", "complex128", "float16"])
@pytest.mark.parametrize("offset", [1, 3])
def test_unaligned_views(same, dtype, offset):
    """An array may lie at any byte."""

    def make(w):
        size = 5 * np.dtype(dtype).itemsize
        data = w.array(w.host_values(8, dtype=dtype).view(np.uint8))
        return data[offset : size + offset].view(dtype), w.values(5, dtype=dtype)

    def f(x, y):
        x += y
        return x + 1, x.sum(), x * y, x[::-1]

    same(f, make)


@pytest.mark.every_framework
def test_overlapping_leaves_are_written(same):
    """``f(x, x[1:])`` with writes through both sees one memory."""

    def f(x, y):
        x *= 2
        y += 1
        x[0] = y[0]
        return x + 0, y.sum()

    def make(w):
        x = w.values(6)
        return x, x[1:]

    same(f, make)


@pytest.mark.every_framework
def test_overlapping_leaves_in_many_ways(same):
    """Interleaved, reversed and nested views of one storage keep their overlap."""

    def f(x, odd, back, part, across):
        odd += 10
        part *= 3
        return back - x, across - x.reshape(2, 4).T, x.sum(), odd + 0

    def make(w):
        x = w.values(8)
        back, rows = x[::-1] if w.framework.steps_back else x[:], x.reshape(2, 4)
        return x, x[1::2], back, rows[1, 1:3], rows.T

    same(f, make)


def _add_in_place(x, y):
    x += 1
    return x + y


@pytest.mark.every_framework
@pytest.mark.parametrize("first", ["same", "other"])
def test_the_same_array_twice_then_another(agree, first):
    """``f(x, x)`` and ``f(x, z)`` are different calls, whichever was recorded."""

    def program(w):
        f = w.graph(_add_in_place)
        for same in (first == "same", first != "same") * 2:
            for _ in range(4):
                x, z = w.values(4), w.values(4)
                yield f(x, x if same else z), x, z

    assert agree(program).count("replays") >= 4


@pytest.mark.minimal
@pytest.mark.every_framework
def test_how_much_leaves_overlap_is_noticed(agree):
    """Views of the same shapes that overlap by more or less never mix."""

    def program(w):
        f = w.graph(lambda a, b: _add_in_place(a, b))
        x = w.values(12)
        for shift in (0, 1, 2, 5, 1, 0, 7, 2, 0, 1) * 3:
            yield f(x[0:5], x[shift : shift + 5]), x

    assert agree(program).count("replays") >= 6


@pytest.mark.minimal
@pytest.mark.every_framework
def test_how_much_new_leaves_overlap_is_noticed(agree):
    """So it is for arguments that are elsewhere in every call."""

    def program(w):
        f = w.graph(_add_in_place)
        for shift in (0, 1, 2, 5, 1, 0, 7, 2, 0, 1) * 3:
            x = w.values(12)
            yield f(x[0:5], x[shift : shift + 5]), x

    world = agree(program)
    assert world.count("replays") >= 6


SCALARS = (
    *(1, True, 1.0, 0, False, 0.0, -0.0, float("nan"), float("inf")),
    *(300, -3, 1 + 0j, -0.0j, complex(0.0, -0.0), np.float32(1), np.float64(1)),
    *(np.int8(1), np.True_),
)


@pytest.mark.every_framework
def test_plain_numbers_are_compared_by_type_and_bits(agree, framework):
    """1, True and 1.0 differ, +0 and -0 differ; NaN is one value."""

    def program(w):
        xp = w.framework.xp
        f = w.graph(lambda x, s: (x * s, x + s, xp.where(x <= 0, x, s), s, [s]))
        x = w.values(4, dtype="int16")
        for _ in range(4):
            for scalar in scalars:
                yield f(x, scalar)

    # NumPy's scalars are NumPy's arrays' alone.
    scalars = [
        s for s in SCALARS if framework.xp is np or not isinstance(s, np.generic)
    ]
    world = agree(program)
    assert world.count("recordings") == len(scalars)
    assert world.count("warmups") == len(scalars)


@pytest.mark.every_framework
def test_every_nan_is_the_same_constant(agree):
    """NaN equals itself, so that it does not record for ever."""

    def program(w):
        xp = w.framework.xp
        f = w.graph(lambda x, s: xp.where(x > 0, x, s))
        x = w.values(4)
        for _ in range(6):
            yield f(x, float("nan"))

    assert agree(program).count("recordings") == 1


@pytest.mark.every_framework
def test_the_sign_of_zero_matters(agree):
    """``copysign`` by a recorded 0.0 must not serve -0.0, nor the other way."""

    def program(w):
        xp = w.framework.xp
        f = w.graph(lambda x, s: xp.copysign(x, s))
        x = w.values(3)
        for scalar in (0.0, -0.0) * 4:
            yield f(x, scalar)

    assert agree(program).count("recordings") == 2


@pytest.mark.every_framework
def test_none_strings_and_dtypes_choose(agree, framework):
    """Each value of them is a constant, and has its own recording."""
    xp, positive, cast = framework.xp, framework.positive, framework.cast

    def f(x, mode=None, axis=None, dtype=None):
        y = positive(x) if mode == "relu" else x * 2
        y = y.sum() if axis is None else y.sum(axis)
        return y if dtype is None else cast(y, dtype), mode, axis

    def program(w):
        g = w.graph(f)
        x = w.values(3, 4)
        for _ in range(4):
            for mode in ("relu", "RELU", "", None):
                for axis in (None, 0, 1, (0, 1)):
                    yield g(x, mode, axis)
            yield g(x, dtype=xp.float32), g(x, dtype=xp.float16)

    assert agree(program).count("recordings") == 18


@pytest.mark.every_framework
def test_nested_containers(same):
    """Nests of tuples, lists and dicts come in and go out as they are."""

    def f(state, *rest, flag, **more):
        x, (y, [z]) = state["x"], state["yz"]
        out = OrderedDict(b=x + y, a=[y * z, (x, None, "text", 3)])
        return {"out": out, 1: rest[0] - z, "more": sorted(more), "flag": flag}, []

    def make(w):
        state = {"x": w.values(3), "yz": (w.values(3), [w.values(3)])}
        return {"state": state, "flag": True, "last": (), "also": {}}

    def call(state, flag, last, also):
        return f(state, state["x"], flag=flag, last=last, also=also)

    same(call, make)


@pytest.mark.every_framework
def test_dataclasses_and_named_tuples(same, framework):
    """Dataclasses, frozen ones too, and named tuples are taken apart and rebuilt."""
    positive = framework.positive

    def f(model, pair, frozen):
        y = pair.left @ model.weight + model.bias
        if model.act == "relu":
            y = positive(y) * model.scale
        moved = Model(model.weight * 2, y, "tanh")
        return moved, Pair(y, [moved.bias]), Frozen(frozen.inner, {"y": y - 1})

    def make(w):
        model = Model(w.values(3, 2), w.values(2), "relu")
        pair = Pair(w.values(4, 3), None)
        return model, pair, Frozen(Pair(w.values(1), 2), {})

    same(f, make)


class Batch(namedtuple("Batch", "x rate")):  # noqa: PYI024 - such are meant
    """One that has a ``__dict__``, as classes that derive from named tuples do."""


def test_named_tuples_with_attributes(rt):
    """What is set on one comes with it, passed and returned."""

    @rt.graph
    def fn(batch):
        made = Batch(batch.x * getattr(batch, "weight", 1.0), batch.rate)
        made.extra = batch.x + 1
        return made

    for n in range(8):
        batch = Batch(rt.array(np.arange(2.0) + n), 3)
        if n % 4 != 3:
            batch.weight = 5.0
        found, x = fn(batch), np.arange(2.0) + n
        assert type(found) is Batch
        assert np.asarray(found.x).tolist() == (x * (1 if n % 4 == 3 else 5)).tolist()
        assert np.asarray(found.extra).tolist() == (x + 1).tolist()
        assert found.rate == 3
    assert fn.stats().replays >= 3


@pytest.mark.every_framework
def test_the_shape_of_a_nest_is_part_of_the_signature(agree):
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

    assert agree(program).count("recordings") == 6


@pytest.mark.every_framework
def test_keywords_and_positions_mean_the_same(agree):
    """However arguments are passed, they reach their parameters."""

    def f(a, b=2, *, c=None):
        return a - b if c is None else (a - b) * c

    def program(w):
        g = w.graph(f)
        x, y = w.values(3), w.values(3)
        for _ in range(4):
            yield g(x, y), g(y, x), g(b=y, a=x), g(a=y, b=x), g(x), g(y, c=x), g(x, 2)
            yield g(x, c=None), g(c=y, b=x, a=y), g(b=3, a=x)

    assert agree(program).count("replays") >= 10


@pytest.mark.parametrize("strict", [False, True])
def test_wrong_arguments_raise_as_they_would(rt, strict):
    """A call that Python refuses is refused in the same way, recorded or not.

    It is no skip, of which there would be a warning.
    """
    f = rt.graph(lambda a, b: a + b, name="sum_of_two", fullgraph=strict)
    x = rt.array(np.ones(3))
    for _ in range(4):
        for args, kwargs, says in [
            ((x,), {}, "missing .*'b'"),
            ((x, x, x), {}, "too many|takes"),
            ((x, x), {"b": x}, "multiple values"),
        ]:
            with pytest.raises(TypeError, match=says):
                f(*args, **kwargs)
        f(x, x)
    assert f.stats().replays == 2


def test_returned_containers_are_fresh(rt):
    """What a caller does to a returned list or dict is nobody else's business."""
    inner = {"k": [1, 2]}
    f = rt.graph(lambda x, given: ([x + 1, given], {"a": [x]}, given))
    x = rt.array(np.arange(3.0))
    for _ in range(5):
        listed, named, given = f(x, inner)
        assert given == {"k": [1, 2]}
        assert np.asarray(listed[0]).tolist() == [1, 2, 3]
        assert list(named) == ["a"]
        if f.stats().replays:
            assert given is not inner
            given["k"].append(3)
        listed.clear()
        named["b"] = 1


@pytest.mark.minimal
@pytest.mark.parametrize("calls", [0, 1, 4])
def test_a_host_array_is_refused(rt, calls):
    """A host array as a leaf is a `TypeError`, at any depth and at any time."""
    f = rt.graph(lambda x, more=None: (x + 1, more), fullgraph=True)
    x = rt.array(np.ones(3))
    for _ in range(calls):
        f(x)
    before = f.stats()
    for leaf in (np.ones(3), np.ones((2, 0)), np.ones(2, dtype=object)):
        for args in ((leaf,), (x, leaf), (x, {"a": [leaf]})):
            with pytest.raises(TypeError, match="host"):
                f(*args)
    with pytest.raises(TypeError):
        f(x, more=Model(x, np.ones(3), "relu"))
    assert f.stats() == before
    assert np.asarray(f(x)[0]).tolist() == [2, 2, 2]


def test_the_pieces_of_one_call_differ_from_those_of_another(agree):
    """Calls that differ in shape, dtype or strides alone never share a recording."""

    def program(w):
        f = w.graph(lambda x: (x * 2, x.sum(0), x[0]))
        base = w.values(4, 4)
        for _ in range(4):
            for x in (base, base.T, base[:2], base[:, :2], base.reshape(2, 8), base[0]):
                yield f(x)
            yield f(base.astype(np.float32)), f(base.astype(np.int32))

    agree(program)


@pytest.mark.every_framework
def test_a_call_with_no_arrays_at_all(agree):
    """A function of constants and of what it closes over can be recorded."""

    def program(w):
        x = w.values(3)
        f = w.graph(lambda n=1: x * n)
        for _ in range(4):
            yield f(), f(2), f(n=2)

    assert agree(program).count("recordings") >= 2


def test_disabled_is_the_eager_world(rt):
    """What the eager world runs is the plain function: nothing is counted."""
    f, x = rt.graph(lambda x: x + 1), rt.array(np.ones(2))
    with sw.disabled():
        for _ in range(4):
            f(x)
    assert f.stats() == rt.graph(lambda x: x).stats()
