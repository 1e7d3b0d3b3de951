"""What needs a value on the host is refused as a whole, or runs as it would anyway."""

from __future__ import annotations

import gc
import itertools
import threading

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu


def three():
    return torch.arange(3.0, device="cuda")


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
    """With ``fullgraph=True``, by the capture at the latest, with the line."""
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
    assert tolerant or f.stats().recordings == f.stats().replays == 0


@pytest.mark.parametrize("how", HIDDEN)
def test_what_waits_in_an_operation_is_refused_on_call_one(rt, how):
    """It would be best to say so at once."""
    f, x, refused = rt.graph(HIDDEN[how], fullgraph=True), three(), False
    try:
        f(x)
    except sw.CaptureError:
        refused = True
    assert refused


# Memory that nobody has told of.


def test_words_that_are_addresses_are_those_that_were_told(rt, named):
    """Of the tensors that kernels really name, the dispatcher has told each."""
    weight, holder = torch.ones(16, device="cuda"), {"h": torch.ones(16, device="cuda")}

    def fn(x, state):
        state += x * weight
        holder["h"].mul_(0.5)
        return (state + holder["h"])[::2]

    x, state = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda")
    f = rt.graph(fn)
    for _ in range(4):
        f(x, state)
    assert named([x, state, weight, holder["h"]])
