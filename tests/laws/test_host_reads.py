"""Law 8: a value that is needed on the host cannot be recorded, and that is said."""

from __future__ import annotations

import gc
import inspect
import threading

import numpy as np
import pytest

import sapwood as sw
from sapwood import events
from tests.support.frameworks import on_host

try:
    import torch
except ImportError:
    torch = None


def _float(x):
    return x * float(x.sum())


def _if(x):
    if x.sum() > 0:
        return x
    return -x


def _asarray(x):
    host = np.asarray(x)
    return x * host.size


READS = {
    "float": _float,
    "if": _if,
    "asarray": _asarray,
    "int": lambda x: x * int(x[0]),
    "bool": lambda x: x * bool(x[0]),
    "complex": lambda x: x * complex(x[0]),
    "item": lambda x: x * x[1].item(),
    "tolist": lambda x: x * len(x.tolist()),
    "while": lambda x: next(y for y in (x, x + 1) if y[0] < 9),
    "max": lambda x: max(x[0], x[1]),
    "index": lambda x: x[: x.argmax()],
    "in": lambda x: x if 2.0 in x.tolist() else -x,
    "nonzero": lambda x: x[np.nonzero(x)[0]],
    "mask": lambda x: x[x > 0],
    "allclose": lambda x: x * np.allclose(x, x),
    "array": lambda x: np.array([float(v) for v in x]).sum() * x,
    "format": lambda x: (x, f"{x[0]:.2f}"),
    "str": lambda x: x * len(str(x)),
    "repr": lambda x: (x, repr(x)),
    "formatted": lambda x: (x, f"{x}"),
    "printed": lambda x: (x, print(x)),  # noqa: T201
    "not": lambda x: x if not x[0] else x + 1,
    "range": lambda x: sum((x for _ in range(x.argmax())), x),
}
NUMPYS = {
    *("asarray", "nonzero", "allclose", "array", "range"),
    *("str", "repr", "formatted", "printed"),
}
TORCHS = {
    "numpy": lambda x: x * x.cpu().numpy().size,
    "places": lambda x: x[x.nonzero()[:, 0]],
    "where": lambda x: torch.where(x > 0)[0],
    "unique": lambda x: x.unique(),
    "equal": lambda x: x * torch.equal(x, x),
    "to": lambda x: x.to("cpu").to(x.device),
    "pin": lambda x: x * torch.zeros(3).copy_(x).numel(),
}
ALL = READS | TORCHS
ONE = {"if", "mask", "numpy", "format"}
"""Reads of each kind, as torch goes through them."""


TEXTS = {"format", "str", "repr", "formatted", "printed"}
WRITTEN = {"pin"}
"""These cannot be recorded; others are: see test_branches.py, and test_reads.py."""


def _reads(torchs):
    """Return the parameters of laws: torch's tensors are read in some ways."""
    for read in ALL:
        if read in READS and read in torchs:
            yield read
        elif read in READS:
            yield pytest.param(read, marks=pytest.mark.only("numpy"))
        elif read in torchs:
            yield pytest.param(read, marks=pytest.mark.only("torch"))


def _texts():
    """Return the parameters of laws about what cannot be recorded."""
    for read in ALL:
        if read in TEXTS & NUMPYS:
            yield pytest.param(read, marks=pytest.mark.only("numpy"))
        elif read in TEXTS:
            yield read
        elif read in WRITTEN:
            yield pytest.param(read, marks=pytest.mark.only("torch"))


every_read = pytest.mark.parametrize("read", [*_reads(ALL.keys() - NUMPYS)])


@pytest.fixture
def three(rt, framework):
    """Return what makes an array of three numbers."""
    return lambda n=0: framework.array(rt, np.arange(3, dtype=framework.dtype) + n)


@pytest.mark.every_framework
@every_read
def test_a_host_read_is_refused_on_call_one(rt, three, read):
    """D test_cuda_graph_tensor_item_not_allowed: by line, with the remedy, at once."""
    fn, x = ALL[read], three()
    f = rt.graph(fn, fullgraph=True)
    for _ in range(3):
        with pytest.raises(sw.CaptureError) as caught:
            f(x)
        error = caught.value
        assert error.where is not None
        file, line = error.where.rsplit(":", 1)
        assert file == __file__
        lines, first = inspect.getsourcelines(fn)
        assert first <= int(line) < first + len(lines)
        assert error.remedy in str(error)
        assert error.where in str(error)
        assert "eager" in error.remedy
    assert f.stats().recordings == f.stats().replays == 0
    assert on_host(x).tolist() == [0, 1, 2]


@pytest.mark.every_framework
def test_the_line_is_the_one_that_reads(rt):
    """In a function of several lines, the line of the read itself is named."""

    def helper(y):
        return float(y)  # the line

    def f(x):
        y = x.sum()
        return x * helper(y)

    lines, first = inspect.getsourcelines(helper)
    expected = first + next(i for i, line in enumerate(lines) if "# the line" in line)
    with pytest.raises(sw.CaptureError) as caught:
        rt.graph(f, fullgraph=True)(rt.array(np.ones(2)))
    assert caught.value.where == f"{__file__}:{expected}"


@pytest.mark.every_framework
@pytest.mark.parametrize("read", [*_reads(ONE)])
def test_the_runtime_is_as_before(rig, three, read):
    """A refused call leaves memory, handles and other recordings as they were."""
    rt = rig.runtime
    x, other = three(), rt.graph(lambda x: x + 1, fullgraph=True)
    for _ in range(3):
        other(x)
    f = rt.graph(ALL[read], fullgraph=True)
    with pytest.raises(sw.CaptureError):
        f(x)
    gc.collect()
    rt.synchronize()
    other(x)
    before = rt.memory_stats(), rig.device.live_handles(), other.stats()
    with pytest.raises(sw.CaptureError):
        f(x)
    gc.collect()
    rt.synchronize()
    assert rt.memory_stats() == before[0]
    assert rig.device.live_handles() == before[1]
    assert other.stats() == before[2]
    assert on_host(other(x)).tolist() == [1, 2, 3]
    assert other.stats().replays == before[2].replays + 1


def test_python_ran_exactly_once(rt):
    """The function is not run again to see whether it would go better."""
    ran = []

    def f(x):
        ran.append(1)
        return x * float(x[0])

    with pytest.raises(sw.CaptureError):
        rt.graph(f, fullgraph=True)(rt.array(np.ones(2)))
    assert len(ran) == 1


@pytest.mark.every_framework
@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("read", [*_texts()])
def test_unsupported_calls_pass_through(rt, three, bits, read):
    """Unless ``fullgraph=True`` the call does what the plain function does."""
    ran = threading.Semaphore(0)

    def counted(x):
        ran.release()
        return ALL[read](x)

    f = rt.graph(counted)
    for i in range(5):
        x = three(i)
        found = bits(f(x))
        with sw.disabled():
            assert found == bits(ALL[read](x))
        assert ran._value == i + 1
    stats = f.stats()
    assert stats.recordings == stats.replays == 0
    assert stats.warmups + stats.passed_through == 5
    assert "host" in f.explain()
    assert any(isinstance(e, events.PassedThrough) for e in rt.events())


@pytest.mark.every_framework
@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_a_branch_on_a_value_follows_the_value(rt):
    """What passes through is never stale: each call takes its own branch."""
    f = rt.graph(_if)
    for i in range(8):
        sign = -1.0 if i % 3 == 0 else 1.0
        out = on_host(f(rt.array(np.array([sign, sign * 2]))))
        assert out.tolist() == [1, 2]


@pytest.mark.every_framework
def test_a_swallowed_error_is_still_an_error(rt):
    """A function that catches the `CaptureError` is not recorded for all that."""

    def f(x):
        try:
            scale = float(x[0])
        except sw.CaptureError:
            scale = 1.0
        return x * scale

    g = rt.graph(f, fullgraph=True)
    for _ in range(4):
        with pytest.raises(sw.CaptureError):
            g(rt.array(np.array([2.0, 3.0])))
    assert g.stats().recordings == 0


@pytest.mark.every_framework
def test_host_reads_of_closed_over_arrays(rt):
    """What is read need not be an argument."""
    limit = rt.array(np.ones(1))
    f = rt.graph(lambda x: x * float(limit[0]), fullgraph=True)
    with pytest.raises(sw.CaptureError):
        f(rt.array(np.ones(2)))


@pytest.mark.every_framework
def test_shape_and_dtype_are_no_host_reads(same, framework):
    """What an array is, as against what it holds, is known without reading."""

    def numpys(x):
        return x.size, np.shape(x)

    def torchs(x):
        return x.numel(), x.is_cuda, tuple(x.size())

    dtype = getattr(framework.xp, framework.dtype)
    own = numpys if framework.xp is np else torchs

    def f(x):
        n = len(x) + x.ndim + x.shape[0] + x.nbytes + x.itemsize
        kind = 1 if x.dtype == dtype else 2
        return [row * n for row in x], n, kind, own(x), bool(x.shape)

    same(f, lambda w: (w.values(3, 2),))


@pytest.mark.every_framework
@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize(
    "wait", ["runtime", pytest.param("device", marks=pytest.mark.only("torch"))]
)
def test_waiting_inside_is_refused(rt, framework, wait):
    """So is waiting, which no replay would do; with torch, when it is captured."""

    def f(x):
        y = x + 1
        if wait == "runtime":
            rt.synchronize()
        else:
            torch.cuda.synchronize()
        return y

    g, x = rt.graph(f, fullgraph=True), rt.array(np.zeros(2))
    with pytest.raises(sw.CaptureError) as caught:
        for _ in range(1 if framework.xp is np else 3):
            g(x)
    assert caught.value.where.startswith(__file__)
    h = rt.graph(f)
    for _ in range(4):
        assert on_host(h(x)).tolist() == [1, 1]


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_text_decides_nothing(rt):
    """A function that branches on it is eager's, on every call."""

    def f(x):
        return x * 2 if "1." in str(x.sum()) else x * 3

    g = rt.graph(f)
    for value in (1.0, 2.0, 1.0, 2.0):
        x = rt.array(np.array([value]))
        assert np.asarray(g(x)).tolist() == [2.0 if value == 1.0 else 6.0]


def _of_none(x, seen):
    try:
        return x.sum().item() / len(seen)
    except ZeroDivisionError:
        return 0.0


def _turned(x, _):
    try:
        return 1.0 / int(x.sum())
    except ZeroDivisionError:
        return -1.0


def _no_scalar(x, _):
    try:
        return float(x)
    except (TypeError, ValueError, RuntimeError):
        return "no scalar"


def _noted(x, seen):
    try:
        seen.append(1.0 / int(x.sum()))
    except ZeroDivisionError:
        seen.append("none")


CATCHING = (_of_none, _turned, _no_scalar, _noted)


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("fn", CATCHING, ids=lambda fn: fn.__name__)
def test_what_a_function_catches_it_catches_in_replays(agree, fn):
    """Where a value that it only passes on raises, in some calls or in all."""

    def program(w):
        seen = []
        f = w.graph(lambda x: fn(x, seen))
        for value in (1, 2, 2, 0, 1, 0, 4, 2, 0, 0, 1):
            yield str(f(w.array(np.full(2, float(value))))), str(seen)

    agree(program)
