"""What needs a value on the host is refused as a whole, or runs as it would anyway."""

from __future__ import annotations

import gc
import inspect
import itertools
import threading

import pytest

import sapwood as sw
from sapwood import events

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu


def _if(x):
    if x.sum() > 0:
        return x
    return -x


READS = {
    "float": lambda x: x * float(x.sum()),
    "if": _if,
    "int": lambda x: x * int(x[0]),
    "bool": lambda x: x * bool(x[0]),
    "complex": lambda x: x * complex(x[0]),
    "item": lambda x: x * x[1].item(),
    "tolist": lambda x: x * len(x.tolist()),
    "numpy": lambda x: x * x.cpu().numpy().size,
    "while": lambda x: next(y for y in (x, x + 1) if y[0] < 9),
    "max": lambda x: max(x[0], x[1]),
    "index": lambda x: x[: x.argmax()],
    "in": lambda x: x if 2.0 in x.tolist() else -x,
    "nonzero": lambda x: x[x.nonzero()[:, 0]],
    "mask": lambda x: x[x > 0],
    "where": lambda x: torch.where(x > 0)[0],
    "unique": lambda x: x.unique(),
    "equal": lambda x: x * torch.equal(x, x),
    "format": lambda x: (x, f"{x[0]:.2f}"),
    "not": lambda x: x if not x[0] else x + 1,
    "to": lambda x: x.to("cpu").to(x.device),
    "pin": lambda x: x * torch.zeros(3).copy_(x).numel(),
}


def three():
    return torch.arange(3.0, device="cuda")


@pytest.mark.parametrize("read", READS)
def test_a_host_read_is_refused_on_call_one(rt, same, read):
    """It raises a `CaptureError` that names the line and the remedy, at once."""
    fn, x = READS[read], three()
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
    same(x, three())


@pytest.mark.parametrize("read", ["if", "mask", "numpy", "format"])
def test_the_runtime_is_as_before(rig, rt, same, read):
    """A refused call leaves memory, handles and other recordings as they were."""
    x, other = three(), rt.graph(lambda x: x + 1, fullgraph=True)
    for _ in range(3):
        other(x)
    f = rt.graph(READS[read], fullgraph=True)
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
    same(other(x), x + 1)
    assert other.stats().replays == before[2].replays + 1


def test_what_is_read_in_the_capture_alone(rig, rt, same):
    """So does one that is refused in its capture, and its Python runs once a call."""
    ran = threading.Semaphore(0)

    def fn(x):
        ran.release()
        y = x * 2
        if torch.cuda.is_current_stream_capturing():
            y = y * y.sum().item()
        return y

    f, x, other = (
        rt.graph(fn, fullgraph=True),
        three(),
        rt.graph(lambda x: x + 1, fullgraph=True),
    )
    for _ in range(3):
        other(x)
    f(x)
    seen = []
    for i in range(3):
        with pytest.raises(sw.CaptureError, match="on the host") as caught:
            f(x)
        assert caught.value.where.startswith(__file__)
        assert ran._value == i + 2
        del caught
        gc.collect()
        rt.synchronize()
        same(other(x), x + 1)
        memory = rt.memory_stats()
        seen.append((memory, rig.device.live_handles()))
    assert seen[-1] == seen[-2]


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("read", READS)
def test_unsupported_calls_pass_through(rt, bits, read):
    """Unless ``fullgraph=True`` the call does what the plain function does."""
    ran = threading.Semaphore(0)

    def counted(x):
        ran.release()
        return READS[read](x)

    f = rt.graph(counted)
    for i in range(5):
        x = three() + i
        assert bits(f(x)) == bits(READS[read](x))
        assert ran._value == i + 1
    stats = f.stats()
    assert stats.recordings == stats.replays == 0
    assert stats.warmups + stats.passed_through == 5
    assert "host" in f.explain()
    assert any(isinstance(e, events.PassedThrough) for e in rt.events())


def test_shape_and_dtype_are_no_host_reads(agrees):
    """What a tensor is, as against what it holds, is known without reading."""

    def f(x):
        n = len(x) + x.ndim + x.numel() + x.shape[0] + x.nbytes + x.itemsize
        kind = 1 if x.dtype == torch.float32 and x.is_cuda else 2
        return [row * n for row in x], n, kind, tuple(x.size()), bool(x.shape)

    agrees(f, lambda w: (w.values(3, 2),))


ENTERING = {
    "array": lambda x, n, rt: x + rt.array([float(n)] * 3),
    "random": lambda x, n: x + (torch.rand(3) + n).to(x.device),
    "unseen": lambda x, n: x + next(UNSEEN).add(n).to(x.device),
    "pinned": lambda x, n: torch.zeros_like(x).copy_(next(UNSEEN).add(n)),
}
UNSEEN = itertools.repeat(torch.ones(3))


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("tolerant", [True, False])
@pytest.mark.parametrize("how", ENTERING)
def test_host_data_entering_is_refused(rt, same, how, tolerant):
    """Data that a function brings would be old in every replay."""
    fn, more = ENTERING[how], (rt,) if how == "array" else ()
    g = rt.graph(lambda x, n: fn(x, n, *more), fullgraph=not tolerant)
    for n in range(4):
        x = three()
        if tolerant:
            torch.manual_seed(n)
            found = g(x, n)
            torch.manual_seed(n)
            same(found, fn(x, n, *more))
            continue
        with pytest.raises(sw.CaptureError, match="host") as caught:
            g(x, n)
        assert caught.value.where.startswith(__file__)
    assert g.stats().recordings == 0


HIDDEN = {
    "allclose": lambda x: x * torch.allclose(x, x),
    "bincount": lambda x: torch.bincount(x.long()),
    "repeat": lambda x: x.repeat_interleave(x.long()),
    "mask": lambda x: x[[True, False, True]],
}
"""What waits, or brings data, inside of one operation."""


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("tolerant", [True, False])
@pytest.mark.parametrize("how", HIDDEN)
def test_what_waits_in_an_operation_is_refused(rt, same, how, tolerant):
    """By the capture at the latest, with the line; eagerly it goes on."""
    fn, x = HIDDEN[how], three()
    f = rt.graph(fn, fullgraph=not tolerant)
    if tolerant:
        for i in range(5):
            same(f(x), fn(x))
            x += i
    else:
        with pytest.raises(sw.CaptureError) as caught:
            for _ in range(2):
                f(x)
        assert caught.value.where.startswith(__file__)
        del caught
    other = rt.graph(lambda x: x + 3, fullgraph=True)
    for _ in range(4):
        same(other(x), x + 3)
    assert f.stats().recordings == f.stats().replays == 0


@pytest.mark.parametrize("how", HIDDEN)
def test_what_waits_in_an_operation_is_refused_on_call_one(rt, how):
    """It would be best to say so at once."""
    f, x, refused = rt.graph(HIDDEN[how], fullgraph=True), three(), False
    try:
        f(x)
    except sw.CaptureError:
        refused = True
    assert refused


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("wait", ["runtime", "device"])
def test_waiting_inside(rt, same, wait):
    """A wait, which no replay would do, is refused by then when it is captured."""

    def f(x):
        y = x + 1
        if wait == "runtime":
            rt.synchronize()
        else:
            torch.cuda.synchronize()
        return y

    g, x = rt.graph(f, fullgraph=True), three()
    with pytest.raises(sw.CaptureError) as caught:
        for _ in range(3):
            g(x)
    assert caught.value.where.startswith(__file__)
    h = rt.graph(f)
    for _ in range(4):
        same(h(x), x + 1)


# Memory that nobody has told of.


def test_a_foreign_tensor_is_refused(rt, same):
    """One that nothing names cannot be guarded: a `CaptureError` with the line."""
    secret, x = torch.full((4,), 5.0, device="cuda"), torch.ones(4, device="cuda")
    source = itertools.repeat(secret)

    def f(x):
        y = x + 1
        return y * next(source)  # the line

    g = rt.graph(f, fullgraph=True)
    with pytest.raises(sw.CaptureError) as caught:
        for _ in range(3):
            g(x)
    file, line = caught.value.where.rsplit(":", 1)
    assert file == __file__
    assert int(line) == f.__code__.co_firstlineno + 2
    assert "argument" in caught.value.remedy
    assert g.stats().recordings == 0
    del caught
    same((secret, x), (torch.full_like(secret, 5.0), torch.ones_like(x)))
    other = rt.graph(lambda x: x * 2, fullgraph=True)
    for _ in range(4):
        same(other(x), x * 2)


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_a_foreign_tensor_that_is_written(rt, same):
    """So is one that is only written; with ``"eager"`` it is written once a call."""
    secret, x = torch.zeros(4, device="cuda"), torch.ones(4, device="cuda")
    source = itertools.repeat(secret)

    def f(x):
        next(source).add_(x)
        return x * 1

    g = rt.graph(f)
    for i in range(5):
        g(x)
        same(secret, torch.full_like(secret, i + 1.0))
    assert g.stats().recordings == 0
    with pytest.raises(sw.CaptureError):
        h = rt.graph(f, fullgraph=True)
        for _ in range(3):
            h(x)


def test_a_foreign_tensor_is_no_result(rt):
    """Nor may one be returned that nothing names, though no operation uses it."""
    source, x = itertools.repeat(torch.zeros(4, device="cuda")), three()
    f = rt.graph(lambda x: (x + 1, next(source)), fullgraph=True)
    with pytest.raises(sw.CaptureError):
        for _ in range(3):
            f(x)
    assert f.stats().recordings == 0


def test_a_number_that_looks_like_an_address(alike):
    """A constant that equals an address is a constant, where the leaf moves, too."""

    def program(w):
        f = w.graph(lambda x, n: (x + n, x * 0 + n, x[1:]))
        first = None
        for _ in range(6):
            x = torch.arange(4, device="cuda")
            first = first or x.data_ptr()
            small = f(x, first)
            yield [part - first for part in small[:2]], small[2]

    assert alike(program).count("replays") > 0


def test_words_that_are_addresses_are_those_that_were_told(rt, monkeypatch):
    """Of the tensors that kernels really name, the dispatcher has told each."""
    from sapwood.driver.api import KernelOp
    from sapwood.tree.record import adopted

    weight, holder = torch.ones(16, device="cuda"), {"h": torch.ones(16, device="cuda")}
    found, built = [], adopted._built

    def noted(scene, taken):
        driver, captured = scene.recordings.device.driver, taken.captured
        words = set()
        for node in driver.nodes(captured.graph):
            try:
                op = driver.node_op(node)
            except sw.DriverError:
                continue  # launched in a way that no op can say
            if isinstance(op, KernelOp):
                words |= {p.lo for p in driver.pointers(op.function, op.params)}
        told = [(s.address, s.address + s.size) for s in captured.session.used]
        found.append((words, told))
        return built(scene, taken)

    monkeypatch.setattr(adopted, "_built", noted)

    def fn(x, state):
        state += x * weight
        holder["h"].mul_(0.5)
        return (state + holder["h"])[::2]

    x, state = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda")
    f = rt.graph(fn)
    for _ in range(4):
        f(x, state)
    named = 0
    for words, told in found:
        for each in (x, state, weight, holder["h"]):
            at, end = each.data_ptr(), each.data_ptr() + each.nbytes
            if any(at <= word < end for word in words):
                assert any(lo <= at < hi for lo, hi in told)
                named += 1
    assert named
