"""Torch's tensors as arguments of functions of CuPy's arrays."""

from __future__ import annotations

import pytest

import sapwood as sw

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning"),
]

CALLS = 24


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def _scaled(cp):
    def fn(t):
        return cp.asarray(t) * 2 + 1

    return fn


def _exchanged(cp):
    def fn(t):
        return cp.from_dlpack(t).sum(axis=0), t

    return fn


def _written(cp):
    def fn(t):
        x = cp.asarray(t)
        x *= 3
        x[1:] -= 1
        return x[0] + 1

    return fn


def _viewed(cp):
    def fn(t):
        return t[1:], cp.asarray(t.T) + 1

    return fn


def _in_torch(_):
    def fn(t):
        t.mul_(2)
        return t

    return fn


def _through_torch(cp):
    import torch

    def fn(t):
        x = cp.asarray(t) + 1
        torch.as_tensor(x, device="cuda").add_(1)
        return x

    return fn


def _made_there(cp):
    import torch

    def fn(t):
        return cp.asarray(t) + cp.asarray(torch.ones(3, device="cuda"))

    return fn


def _given_back(cp):
    import torch

    def fn(t):
        return torch.from_dlpack(cp.asarray(t) * 2)

    return fn


def _around_a_region(cp):
    seen = []

    @sw.eager
    def live(t):
        seen.append(float((t * 2).sum()))

    def fn(t):
        x = cp.asarray(t)
        x += 1
        live(t)
        return x * 2, len(seen)

    return fn


RECORDED = [_scaled, _exchanged, _written, _viewed, _given_back]
OTHERS = [_in_torch, _through_torch, _made_there, _around_a_region]


def _told(cp, values):
    if not isinstance(values, tuple):
        values = (values,)
    return [
        x
        if isinstance(x, int)
        else (type(x).__name__, cp.asnumpy(cp.asarray(x)).tolist())
        for x in values
    ]


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("make", RECORDED + OTHERS)
def test_functions_of_tensors_are_as_eager(rt, cp, torch, make, kept):
    """The same tensor, others, and views of others; outputs that are kept."""
    fn, f = make(cp), rt.graph(make(cp))
    wholes = [torch.randn(6, 3, device="cuda") for _ in range(3)]
    twins = [whole.clone() for whole in wholes]
    keep, expected = [], []
    for i in range(CALLS):
        k, rows = i % 3 if i // 8 == 1 else 0, slice(0, 4) if i < 20 else slice(2, 6)
        expected.append(fn(twins[k][rows]))
        keep.append(f(wholes[k][rows]))
        if not kept:
            assert _told(cp, keep.pop()) == _told(cp, expected.pop())
    for mine, theirs in zip(keep, expected, strict=True):
        assert _told(cp, mine) == _told(cp, theirs)
    for mine, theirs in zip(wholes, twins, strict=True):
        assert torch.equal(mine, theirs)
    assert (f.stats().replays > CALLS // 2) == (make in RECORDED)


def _with_grad(torch):
    return torch.ones(4, device="cuda", requires_grad=True)


def _of_no_dtype_of_cupys(torch):
    return torch.ones(4, device="cuda", dtype=torch.bfloat16)


def _conjugated(torch):
    return torch.ones(4, device="cuda", dtype=torch.complex64).conj()


@pytest.mark.parametrize("make", [_with_grad, _of_no_dtype_of_cupys, _conjugated])
def test_other_tensors_make_a_call_eager(rt, cp, torch, make):
    """It says why, and ends as without a graph."""
    t, f = make(torch), rt.graph(lambda t: (t.detach() * 2, cp.ones(3)))
    for _ in range(4):
        assert torch.equal(f(t)[0], t.detach() * 2)
    assert f.stats().replays == 0
    assert "a tensor of torch is an argument" in f.explain()


@pytest.mark.parametrize("named", [False, True])
def test_what_torch_has_on_another_stream_makes_a_call_eager(rt, cp, torch, named):
    """CuPy waits for that stream where it is eager; a replay would not."""
    t = torch.zeros(1 << 22, device="cuda")
    f = rt.graph((lambda _: cp.from_dlpack(t) + 1) if named else _waiting(cp))
    assert [int(f(t)[-1]) for _ in range(6)] == [1] * 6
    replays = f.stats().replays
    assert replays > 2
    with torch.cuda.stream(torch.cuda.Stream()):
        for i in range(1, 6):
            t.fill_(i)
            assert int(f(t)[-1]) == i + 1
    assert f.stats().replays == replays


def _waiting(cp):
    return lambda t: cp.from_dlpack(t) + 1


def test_a_tensor_that_is_only_named_is_read_where_it_is(rt, cp, torch):
    """In a closure, and bound to another tensor meanwhile."""

    class Held:
        t = torch.ones(4, device="cuda")

    held, x = Held(), cp.ones(4)
    f = rt.graph(lambda x: x + cp.asarray(held.t))
    for i in range(10):
        if i % 4 == 3:
            held.t = torch.full((4,), float(i), device="cuda")
        held.t += 1
        assert cp.asnumpy(f(x)).tolist() == (held.t + 1).tolist()
    assert f.stats().replays > 2
