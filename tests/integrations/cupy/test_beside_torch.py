"""CuPy and torch in one program, on a runtime that was made for neither by name."""

from __future__ import annotations

import sys

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning"),
]

CALLS = 12


@pytest.fixture
def both(cp):  # noqa: ARG001 - it is imported
    """Return a runtime of torch's tensors, in a program with CuPy."""
    torch.zeros(1, device="cuda")
    with sw.Runtime() as runtime:
        assert runtime.arrays == "torch"
        yield runtime


def test_functions_of_either_are_recorded(both, cp):
    """Each is on a runtime of its own; they are counted and closed as one."""
    f, g = both.graph(lambda x: x * 2 + 1), both.graph(lambda x: x * 3 - 1)
    for i in range(CALLS):
        x = cp.full(4, float(i))
        t = torch.full((4,), float(i), device="cuda")
        assert f(x).get().tolist() == [2.0 * i + 1] * 4
        assert g(t).tolist() == [3.0 * i - 1] * 4
        with both.step():
            pass
    assert f.stats().replays >= CALLS - 4
    assert g.stats().replays >= CALLS - 4
    assert both.stats().replays == f.stats().replays + g.stats().replays
    both.sleep()
    both.wake()
    assert f(cp.ones(4)).get().tolist() == [3.0] * 4


def test_who_asks_before_the_first_call(both, cp):
    """Nothing is decided by that."""
    f = both.graph(lambda x: x + 1)
    assert f.stats().replays == 0
    for _ in range(CALLS):
        assert f(cp.zeros(2)).get().tolist() == [1.0, 1.0]
    assert f.stats().replays >= CALLS - 4


def test_a_runtime_of_cupys_arrays_takes_functions_of_torchs(cp, monkeypatch):
    """It was made before the program imported torch."""
    with monkeypatch.context() as patched:
        patched.delitem(sys.modules, "torch")
        runtime = sw.Runtime()
    with runtime:
        assert runtime.arrays == "cupy"
        f, g = runtime.graph(lambda x: x + 1), runtime.graph(lambda x: x * 2)
        for i in range(CALLS):
            assert f(torch.full((2,), float(i), device="cuda")).tolist() == [i + 1] * 2
            assert g(cp.full(2, float(i))).get().tolist() == [2 * i] * 2
        assert f.stats().replays >= CALLS - 4
        assert g.stats().replays >= CALLS - 4


def _states(cp):
    """Return functions without arguments, and what they write."""
    x, rng = cp.zeros(3), cp.random.RandomState(3)

    def in_place():
        x[...] += 1
        return x.copy()

    def drawn():
        return rng.rand(3) + x

    def read():
        x[...] += 1
        return float(x.sum())

    return [in_place, drawn, read]


@pytest.mark.parametrize("which", range(3))
def test_functions_of_what_they_name(both, cp, which):
    """CuPy's arrays in closures, or none before the call."""
    plain, f = _states(cp)[which], both.graph(_states(cp)[which])
    for _ in range(CALLS):
        mine, theirs = f(), plain()
        assert cp.asnumpy(mine).tolist() == cp.asnumpy(theirs).tolist()


def _mixed(cp):
    """Return functions of a tensor that have CuPy do something."""
    kernel = cp.ElementwiseKernel("float32 x", "float32 y", "y = x + 1", "one_more")
    kept = cp.zeros(4, dtype=cp.float32)

    def in_place(t):
        x = cp.from_dlpack(t)
        kernel(x, x)
        return t * 2

    def allocates(t):
        return torch.from_dlpack(cp.from_dlpack(t) * 2) + 1

    def keeps(t):
        kernel(kept, kept)
        return t + torch.from_dlpack(kept)

    return [in_place, allocates, keeps]


@pytest.mark.parametrize("which", range(3))
def test_functions_of_both(both, cp, which):
    """Nothing that CuPy does is done twice, or not at all."""
    plain, f = _mixed(cp)[which], both.graph(_mixed(cp)[which])
    for i in range(CALLS):
        t = torch.full((4,), float(i), device="cuda")
        u = t.clone()
        assert f(t).tolist() == plain(u).tolist()
        assert t.tolist() == u.tolist()


def test_a_region_has_cupys_own_stream_and_memory(both, cp):
    """In a function of torch's tensors."""
    stream, seen = cp.cuda.Stream(), []

    @sw.eager
    def region(t):
        seen.append(cp.cuda.get_current_stream().ptr)
        return float((cp.from_dlpack(t) * 2).sum())

    f = both.graph(lambda t: (t + 1, region(t)))
    t = torch.ones(4, device="cuda")
    with stream:
        for _ in range(CALLS):
            assert f(t)[1] == 8.0
    assert set(seen) == {stream.ptr}
    assert f.stats().replays >= CALLS // 2
